"""Tools that show what a net does: traces, explanations, drawings, summaries, times."""
