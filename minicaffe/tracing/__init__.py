"""What a net does, made visible: traces, explanations, drawings, summaries, times."""
