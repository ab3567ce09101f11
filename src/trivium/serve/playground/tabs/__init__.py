"""The tabs of the playground, one file each: a function that adds it to the page being built."""
