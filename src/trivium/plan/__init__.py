"""What a training run needs, before it starts: on many GPUs on paper, on this machine measured."""
