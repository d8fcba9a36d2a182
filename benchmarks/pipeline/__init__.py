"""What bench_pipeline.py is made of: journals, and subjects that read them."""
