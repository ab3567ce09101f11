"""Import and export of Hugging Face models, tokenizers and adapters."""
