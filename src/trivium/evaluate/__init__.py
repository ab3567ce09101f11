"""Evaluation of models: perplexity, few-shot prompting, lm-evaluation-harness and best-of-n."""
