"""What every op is made of: its kernels as data, its variants and their launches, and the plan that runs them."""
