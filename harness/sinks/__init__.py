"""Results in the tools that people keep them in: MLflow, Weights & Biases, OpenTelemetry.

    entry      what a tool is told of a folder of results
    tracking   runs of MLflow and of Weights & Biases
    spans      what happened to each request, as spans
    otlp       spans as OpenTelemetry has them, and where they are exported to
    sending    which folder is sent to which tool, and when

Everything is read from the output folder once the run is over: nothing disturbs a measurement, no tool is imported
before, and what could not be sent is still there.
"""
