"""What makes the committed assets and reports: base model, exam, learning report, soak runs."""
