"""What writers of C and CUDA share: elements, expressions, where tiles lie, and how kernels are called."""
