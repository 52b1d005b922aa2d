"""Tools that show how a net computes: traces, explanations, drawings, summaries, times."""
