"""What responses and programs are like, beside whether they are right: lengths, repetition, languages, complexity, and
a screen for alarming texts. No model judges."""
