"""Speech in, text out. Nothing here is imported by `import toolkit`; numpy and engines are imported on use."""
