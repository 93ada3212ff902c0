"""Times of matrix products, interpolated in the measured grid of n and k.

    [m, k] x [k, n]      m tokens, k inputs, n outputs of a linear layer on one rank

Between measured n and k times are bilinear, as bytes of weights and operations are. Beyond the grid they grow in
proportion: a product of 2n outputs takes twice the tiles.

Kernels compute tiles of 128 rows or more, and a product whose last tile is not full takes longer than a full one:
on H100 an FP8 product of 257 rows takes up to 1.4 times as long as one of 512. The tables have both sides of the edges.
Times must not fall from full tiles to more full tiles, nor from sizes that leave a tile open to larger ones.

FP8 times contain the quantisation of the input, by a scale for each token that is computed. Checkpoints with static
scales save what the database's table computescale_perf holds. Block-scaled FP8 products were timed outside of CUDA
graphs, where 60 to 350 us of launches hide the kernel. They are taken to be `_BLOCK_SCALED` times as long as those with
a scale per channel, the median ratio of products that take over `_CLEAR` times the launch; see `block_scaled_ratio`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from simulator.importers.aiconfigurator.database import Database
from simulator.importers.aiconfigurator.measured_curve import Floats, MeasuredCurve, measured_curve
from simulator.importers.aiconfigurator.rules import SUSTAINED, TRTLLM
from simulator.profile.profile import ProfileError

_CLEAR = 4.0
_VISIBLE = 2.0  # times the launch, from which on a line through products of all outputs shows what a row takes
_TILE_ROWS = 128
_SMALL_ROWS = 64  # up to which products take small tiles, and as long as their weights take to read


class RowTimes(NamedTuple):
    """Times in us of one row of a large product.

    Attributes:
        fixed_us: whatever the outputs: what quantises the row, where the product contains that.
        output_us: for each output.
    """

    fixed_us: float
    output_us: float


class Gemms:
    """The products of one database.

    Args:
        static_scales: FP8 checkpoints hold the scales of activations.

    Attributes:
        num_dropped: outliers among the points that were used.
    """

    def __init__(self, database: Database, *, static_scales: bool = False) -> None:
        self._database = database
        self._has_static_scales = static_scales
        self._rows: dict[str, pd.DataFrame] = {}
        self._curves: dict[tuple[str, int, int], MeasuredCurve] = {}
        self.num_dropped = 0

    def curve(self, dtype: str, n: int, k: int) -> MeasuredCurve:
        """Time over m of a product of n outputs and k inputs.

        Args:
            dtype: as the database calls it: bfloat16, fp8, fp8_block, nvfp4.

        Raises:
            ProfileError: products of this dtype were not measured.
        """
        if dtype == "fp8_block":
            plain = self.curve("fp8", n, k)
            return MeasuredCurve(plain.sizes, plain.times_us * self.block_scaled_ratio())
        rows = self._of(dtype)
        corners = [
            (weight_n * weight_k, self._measured(dtype, near_n, near_k))
            for near_n, weight_n in _weights(rows["n"].unique(), n)
            for near_k, weight_k in _weights(rows["k"].unique(), k)
        ]
        sizes = np.unique(np.concatenate([curve.sizes for _, curve in corners]))
        times = np.asarray(sum(weight * curve.at(sizes) for weight, curve in corners))
        if dtype == "fp8" and self._has_static_scales:
            times = np.maximum(times - self._scales_us(k, sizes), times / 2)
        curve = MeasuredCurve(sizes, times)
        has_random_data = self._database.backend == TRTLLM and not self._is_taken_over(dtype)
        return curve if has_random_data else curve.slowed(SUSTAINED)

    def row_us(self, dtype: str, k: int) -> RowTimes:
        """What a row of `k` inputs takes in the largest measured products, whose times are linear in their outputs.

        Raises:
            ProfileError: too few products of this dtype take clearly longer than a launch.
        """
        rows = self._of(dtype)
        clear = rows[(rows["m"] == rows["m"].max()) & (rows["time_us"] > _VISIBLE * rows["time_us"].min())]
        lines = {near: _line(part) for near, part in clear.groupby("k") if part["n"].nunique() > 1}
        if not lines:
            raise ProfileError(f"{self._database.system}: too few large products in {dtype}")
        near = [(weight, lines[each]) for each, weight in _weights(np.array(list(lines)), k)]
        fixed_us, output_us = (sum(weight * line[part] for weight, line in near) for part in (0, 1))
        return RowTimes(fixed_us, output_us)

    def block_scaled_ratio(self) -> float:
        """Median time of block-scaled FP8 products, as a multiple of those with a scale per channel."""
        block, plain = self._of("fp8_block"), self._of("fp8")
        launch = block["time_us"].min()
        both = block[block["time_us"] > _CLEAR * launch].merge(plain, on=["m", "n", "k"], suffixes=("", "_plain"))
        if both.empty:
            return 1.0
        return float((both["time_us"] / both["time_us_plain"]).median())

    def _scales_us(self, k: int, sizes: Floats) -> Floats:
        """Time of computing a scale for each of `sizes` tokens of `k` elements, and TensorRT-LLM's of scaling them."""
        tables = (
            ["computescale_perf", "scale_matrix_perf"] if self._database.backend == TRTLLM else ["computescale_perf"]
        )
        return np.asarray(sum(self._quantizing_us(table, k, sizes) for table in tables))

    def _quantizing_us(self, table: str, k: int, sizes: Floats) -> Floats:
        rows = self._database.rows("quantize", table, quant_dtype="fp8")
        if rows.empty:
            raise ProfileError(f"{self._database.system}/{self._database.version} has no times of FP8 scales")
        near = min(rows["k"].unique(), key=lambda size: abs(size - k))
        curve, dropped = measured_curve(rows[rows["k"] == near], "m")
        self.num_dropped += dropped
        return curve.at(sizes) * (k / near)

    def _is_taken_over(self, dtype: str) -> bool:
        """Whether the times are vLLM's: TensorRT-LLM's products in NVFP4 were timed without its autotuner."""
        return self._database.backend == TRTLLM and dtype == "nvfp4"

    def _of(self, dtype: str) -> pd.DataFrame:
        if dtype not in self._rows:
            source = "vllm" if self._is_taken_over(dtype) else None
            rows = self._database.rows("gemm", "gemm_perf", source=source, gemm_dtype=dtype)
            if rows.empty:
                raise ProfileError(f"{self._database.system}/{self._database.version} has no GEMMs in {dtype}")
            self._rows[dtype] = rows[["m", "n", "k", "time_us"]]
        return self._rows[dtype]

    def _measured(self, dtype: str, n: int, k: int) -> MeasuredCurve:
        key = (dtype, n, k)
        if key not in self._curves:
            rows = self._of(dtype)
            rows = rows[(rows["n"] == n) & (rows["k"] == k)]
            if rows.empty:
                raise ProfileError(f"{self._database.system}: no GEMM of n={n}, k={k} in {dtype}")
            self._curves[key], dropped = _over_tiles(rows)
            self.num_dropped += dropped
        return self._curves[key]


def _over_tiles(rows: pd.DataFrame) -> tuple[MeasuredCurve, int]:
    """The curve of `rows` over m, and how many outliers among full and open tiles were dropped."""
    fills = (rows["m"] <= _SMALL_ROWS) | (rows["m"] % _TILE_ROWS == 0)
    parts = [measured_curve(part, "m") for part in (rows[fills], rows[~fills]) if len(part)]
    sizes, times = (np.concatenate(each) for each in zip(*(curve for curve, _ in parts), strict=True))
    order = sizes.argsort()
    return MeasuredCurve(sizes[order], times[order]), sum(dropped for _, dropped in parts)


def _line(rows: pd.DataFrame) -> tuple[float, float]:
    """What a row takes whatever the outputs, and for each output, of products of one k with equally many rows: a line
    over n with the least relative error."""
    n, times = rows["n"].to_numpy(np.float64), rows["time_us"].to_numpy(np.float64)
    output_us, fixed_us = np.polyfit(n, times, 1, w=1 / times) / float(rows["m"].iloc[0])
    return max(float(fixed_us), 0.0), float(output_us)


def _weights(grid: np.ndarray, size: int) -> list[tuple[int, float]]:
    """The measured sizes around `size` and their weights, which sum to 1, or to size/last beyond the last one."""
    sizes = np.sort(grid)
    if size >= sizes[-1]:
        return [(int(sizes[-1]), size / float(sizes[-1]))]
    if size <= sizes[0]:
        return [(int(sizes[0]), 1.0)]
    high = int(np.searchsorted(sizes, size, side="right"))
    below, above = int(sizes[high - 1]), int(sizes[high])
    share = (size - below) / (above - below)
    return [(below, 1.0 - share), (above, share)] if share else [(below, 1.0)]
