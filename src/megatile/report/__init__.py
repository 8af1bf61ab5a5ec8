"""What a person looks at: tables, trees, pictures. Reads machines and traces, computes nothing of its own."""
