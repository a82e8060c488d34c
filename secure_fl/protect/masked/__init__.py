"""`masked`: pairwise masks within a circle, which cancel in its whole sum and nowhere else."""
