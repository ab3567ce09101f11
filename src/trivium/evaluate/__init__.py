"""Model evaluation: perplexity, few-shot prompting, lm-evaluation-harness and best-of-n."""
