"""What planning adds where KV is stored on the host as it is computed: loads before admissions, stores after."""
