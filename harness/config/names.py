"""What `harness.config` offers."""

from harness.config.checked import load, parse, to_yaml, validated
from harness.config.run import RunConfig
from harness.config.schema.allocator import AllocatorConfig, ContiguousAllocator, PagedAllocator
from harness.config.schema.metrics import IntervalConfig, MetricsConfig, SloConfig
from harness.config.schema.model import Dtype, ModelConfig
from harness.config.schema.system import (
    CostConfig,
    CpuEngine,
    CustomCost,
    DeviceConfig,
    EngineConfig,
    GpuEngine,
    LinearCost,
    ProfiledCost,
    RooflineCost,
    SchedulerConfig,
    SimEngine,
)
from harness.config.schema.tiers import TiersConfig
from harness.config.schema.traffic.arrivals import (
    AllAtOnceArrival,
    ArrivalConfig,
    ClosedLoopArrival,
    ConstantArrival,
    CustomArrival,
    GammaArrival,
    PoissonArrival,
    SessionsArrival,
    TraceArrival,
)
from harness.config.schema.traffic.lengths import ConstantLengths, LengthsConfig, LognormalLengths, UniformLengths
from harness.config.schema.traffic.trace_files import AzureTrace, BurstGptTrace, CsvTrace, JsonlTrace, MooncakeTrace
from harness.config.schema.traffic.workload import (
    AgenticTrace,
    CustomTrace,
    SharedPrefixTrace,
    ShareGptTrace,
    SyntheticTrace,
    TraceConfig,
)

__all__ = [
    "AgenticTrace",
    "AllAtOnceArrival",
    "AllocatorConfig",
    "ArrivalConfig",
    "AzureTrace",
    "BurstGptTrace",
    "ClosedLoopArrival",
    "ConstantArrival",
    "ConstantLengths",
    "ContiguousAllocator",
    "CostConfig",
    "CpuEngine",
    "CsvTrace",
    "CustomArrival",
    "CustomCost",
    "CustomTrace",
    "DeviceConfig",
    "Dtype",
    "EngineConfig",
    "GammaArrival",
    "GpuEngine",
    "IntervalConfig",
    "JsonlTrace",
    "LengthsConfig",
    "LinearCost",
    "LognormalLengths",
    "MetricsConfig",
    "ModelConfig",
    "MooncakeTrace",
    "PagedAllocator",
    "PoissonArrival",
    "ProfiledCost",
    "RooflineCost",
    "RunConfig",
    "SchedulerConfig",
    "SessionsArrival",
    "ShareGptTrace",
    "SharedPrefixTrace",
    "SimEngine",
    "SloConfig",
    "SyntheticTrace",
    "TiersConfig",
    "TraceArrival",
    "TraceConfig",
    "UniformLengths",
    "load",
    "parse",
    "to_yaml",
    "validated",
]
