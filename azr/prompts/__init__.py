"""Between text and tokens: chat templates, prompt formats and the codec of one model."""
