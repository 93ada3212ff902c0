"use strict";
// Draws the figures of a page with Bokeh, from the JSON beside each place; again when the colours change.
window.drawFigures = (() => {
  const MARKERS = {o: "circle", s: "square", "^": "triangle", D: "diamond", x: "x", ".": "circle"};
  const coarse = matchMedia("(pointer: coarse)").matches;
  const root = document.documentElement;
  let shown = [];
  Bokeh.logger.set_level("warn");

  const css = name => getComputedStyle(root).getPropertyValue(name).trim();
  const colorOf = color => typeof color === "number" ? css(`--color-${color}`) : typeof color === "string" ? css(`--${color}`)
    : `hsl(${280 - 225 * color.shade} 60% ${root.dataset.theme === "dark" ? 62 : 42}%)`;
  // Bokeh reads $$...$$, \(...\) and \[...\] as formulas and would load a library for them
  const plain = text => text.replaceAll("$$", "$\u200b$").replaceAll("\\", "\\\u200b");
  // the fewest characters from `most` on, up to 34, with which shortened names still differ
  const lengthOf = (names, most) => {
    const count = new Set(names).size;
    while (most < 34 && new Set(names.map(name => short(name, most))).size < count) most += 1;
    return most;
  };
  const short = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;
  const floats = values => Float64Array.from(values, value => value ?? NaN);

  const NUMBER = "0,0.[000]", SHARE = "0.[00000]%";
  const rangeOf = axis => new Bokeh.Range1d({start: axis.start, end: axis.end});
  const formatFor = axis => axis.percent ? SHARE : NUMBER;
  // Powers of ten, with 2 and 5 times as much where they are few; Bokeh's own are crowded at the end of a short axis
  function logTicks(low, high) {
    const within = factors => {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
        for (const factor of factors) found.push(factor * 10 ** power);
      }
      return found.filter(tick => low <= tick && tick <= high);
    };
    const all = [[1, 2, 5], [1, 3], [1]].map(within);
    const many = all[2].length > 8 ? all[2].filter((_, place) => place % 2 === 0) : all[2];
    return {major: [all[0], all[1]].find(ticks => ticks.length <= 7) ?? many, minor: []};
  }
  function style(plot, figure) {
    const [ink, grey, line] = [css("--ink"), css("--grey"), css("--line")];
    for (const axis of plot.axes) {
      Object.assign(axis, {
        axis_line_color: line, major_tick_line_color: line, minor_tick_line_color: null,
        major_label_text_color: grey, major_label_text_font_size: "12px", major_label_text_font: "system-ui, sans-serif",
        axis_label_text_color: grey, axis_label_text_font_size: "12px", axis_label_text_font_style: "normal",
        axis_label_text_font: "system-ui, sans-serif",
      });
    }
    for (const grid of plot.grids) Object.assign(grid, {grid_line_color: line, grid_line_alpha: 0.7});
    plot.toolbar.logo = null;
    plot.toolbar.autohide = !coarse;
    for (const [axis, described] of [[plot.xaxes[0], figure.x], [plot.yaxes[0], figure.y]]) {
      axis.axis_label = plain(described.label);
      axis.formatter = new Bokeh.NumeralTickFormatter({format: formatFor(described)});
      if (described.log) axis.ticker.get_ticks_no_defaults = logTicks;
      if (!described.names) continue;
      const most = lengthOf(described.names, innerWidth < 600 ? 16 : 34);
      axis.ticker = new Bokeh.FixedTicker({ticks: described.names.map((_, place) => place)});
      axis.major_label_overrides = new Map(described.names.map((name, place) => [place, plain(short(name, most))]));
      axis.major_label_text_color = ink;
      for (const grid of plot.ygrids) grid.visible = false;
    }
  }
  function glyphsOf(plot, series, source, sideways) {
    const color = colorOf(series.color);
    const [x, y, low, high] = ["x", "y", "low", "high"].map(field => ({field}));
    const own = () => new Bokeh.ColumnDataSource({data: source.data});  // as Bokeh draws no area of which a point is found
    if (series.kind === "band") return [plot.varea({x, y1: low, y2: high, source: own(), fill_color: color, fill_alpha: 0.4})];
    if (series.kind === "bars") return [plot.hbar({y, right: x, left: 0, height: 0.6, source, fill_color: color, line_color: null})];
    const glyphs = [];
    if (series.filled) glyphs.push(plot.varea({x, y1: series.low ? low : 0, y2: y, source: own(), fill_color: color, fill_alpha: 0.18}));
    else if (series.low) {
      const ends = sideways ? {x0: low, x1: high, y0: y, y1: y} : {x0: x, x1: x, y0: low, y1: high};
      glyphs.push(plot.segment({...ends, source, line_color: color, line_width: 1.5, line_alpha: 0.8}));
    }
    if (series.kind === "line" || series.kind === "steps") {
      glyphs.push(plot.line({x, y, source, line_color: color, line_width: 1.3 * series.width, line_dash: series.dashed ? [6, 4] : []}));
    }
    if (MARKERS[series.marker]) {
      const many = series.x.length > 400;
      glyphs.push(plot.scatter({
        x, y, source, marker: MARKERS[series.marker], size: series.marker === "x" ? 12 : series.marker === "." || many ? 4 : 8, fill_color: color,
        line_color: series.hollow || series.marker === "x" ? color : null, line_width: 1.5,
        fill_alpha: series.hollow ? 0 : many ? 0.45 : 1,
      }));
    }
    return glyphs;
  }
  // What the pointer finds: the last glyph, or around the points of a line discs that are not seen. They have a source of
  // their own, as Bokeh draws of a line only the found points.
  function targetOf(plot, figure, series, source, glyphs) {
    if (series.kind !== "line" || figure.group || !glyphs.length) return glyphs[glyphs.length - 1];
    const own = new Bokeh.ColumnDataSource({data: source.data});
    return plot.scatter({
      x: {field: "x"}, y: {field: "y"}, source: own, size: 14, fill_color: colorOf(series.color), fill_alpha: 0, line_color: null,
    });
  }
  function hoverOf(figure, series, glyph) {
    const value = (axis, field) => axis.names ? null : [axis.label, `@${field}{${formatFor(axis)}}`];
    const texts = Object.keys(series.texts).map((name, place) => [name, `@text${place}`]);
    const interval = series.high ? [["95 % interval", "@interval"]] : [];
    const name = series.name || figure.y.names ? [["", "@name"]] : [];
    const here = figure.group
      ? figure.series.map((each, place) => [each.name, `@series${place}{${formatFor(figure.y)}}`])
      : [value(figure.y, "y"), ...interval, ...texts];
    const rows = [...figure.group ? [] : name, value(figure.x, "x"), ...here].filter(row => row);
    return new Bokeh.HoverTool({
      renderers: [glyph], tooltips: rows, mode: figure.group ? "vline" : "mouse", limit: 1, line_policy: "nearest",
      point_policy: "snap_to_data", visible: false,
    });
  }
  // Bounds of intervals; on a logarithmic axis one of 0 is drawn at its end
  function onAxis(bounds, figure, range) {
    const {log} = figure.y.names ? figure.x : figure.y;
    return floats(bounds).map(value => log && value <= 0 ? range.start : value);
  }
  function intervalText(low, high, figure) {
    const isShare = (figure.y.names ? figure.x : figure.y).percent;
    const format = new Intl.NumberFormat("en", {maximumSignificantDigits: 4, style: isShare ? "percent" : "decimal"});
    return low === null || high === null ? "not known" : `${format.format(low)} to ${format.format(high)}`;
  }
  function sourceOf(figure, series, range) {
    const data = {x: floats(series.x), y: floats(series.y), name: series.x.map(() => series.name)};
    for (const bound of ["low", "high"]) if (series[bound]) data[bound] = onAxis(series[bound], figure, range);
    if (series.high) {
      data.interval = series.low.map((low, place) => intervalText(low, series.high[place], figure));
    }
    if (figure.group) figure.series.forEach((each, place) => { data[`series${place}`] = floats(each.y); });
    Object.values(series.texts).forEach((texts, place) => { data[`text${place}`] = texts; });
    if (figure.y.names) data.name = series.y.map(place => figure.y.names[place]);
    return new Bokeh.ColumnDataSource({data});
  }
  function entry(kind, color, text, glyphs) {
    const element = document.createElement(glyphs ? "button" : "span");
    const mark = document.createElement("i");
    mark.className = kind;
    mark.style.setProperty("--shown", color);
    element.append(mark, text);
    if (glyphs) {
      element.type = "button";
      element.setAttribute("aria-pressed", "true");
      element.addEventListener("click", () => {
        const visible = !glyphs[0].visible;
        for (const glyph of glyphs) glyph.visible = visible;
        element.setAttribute("aria-pressed", String(visible));
      });
    }
    return element;
  }
  // Figures of one group show the same part of x. They are documents of their own, which cannot share a range.
  function follow(group, range) {
    range.change.connect(() => {
      const {start, end} = range;
      for (const other of group) if (other.start !== start || other.end !== end) other.setv({start, end});
    });
    group.push(range);
  }
  function draw(place, groups) {
    const figure = JSON.parse(place.parentElement.querySelector("script").textContent);
    const xRange = rangeOf(figure.x);
    if (figure.group) {
      if (!groups.has(figure.group)) groups.set(figure.group, []);
      follow(groups.get(figure.group), xRange);
    }
    const zoom = new Bokeh.BoxZoomTool();
    const plot = Bokeh.Plotting.figure({
      x_range: xRange, y_range: rangeOf(figure.y),
      x_axis_type: figure.x.log ? "log" : "linear", y_axis_type: figure.y.log ? "log" : "linear",
      sizing_mode: "stretch_both", toolbar_location: "right",
      tools: [zoom, new Bokeh.PanTool(), new Bokeh.WheelZoomTool(), new Bokeh.ResetTool(), new Bokeh.SaveTool()],
      background_fill_color: null, border_fill_color: null, outline_line_color: null, output_backend: "svg",
      active_drag: coarse ? null : zoom, active_scroll: null, min_border_top: 8, min_border_left: figure.group ? 84 : 5, min_border_right: 12,
    });
    style(plot, figure);
    const bounded = figure.y.names ? plot.x_range : plot.y_range;
    const legend = place.parentElement.querySelector(".legend");
    legend.replaceChildren();
    const entries = [];
    const named = new Map();  // series of one name are shown and hidden together
    for (const [start, end] of figure.shaded) {
      plot.add_layout(new Bokeh.BoxAnnotation({left: start, right: end, fill_color: css("--grey"), fill_alpha: 0.12, line_color: null}));
    }
    for (const series of figure.series) {
      const source = sourceOf(figure, series, bounded);
      const glyphs = glyphsOf(plot, series, source, figure.y.names !== null);
      // figures over time have one box with all series, whose times are the same
      if (series.kind !== "band" && (!figure.group || series === figure.series[0])) {
        plot.add_tools(hoverOf(figure, series, targetOf(plot, figure, series, source, glyphs)));
      }
      if (!series.name) continue;
      if (named.has(series.name)) {
        named.get(series.name).push(...glyphs);
        continue;
      }
      named.set(series.name, glyphs);
      const mark = series.dashed ? "dashed" : series.kind === "points" ? "points" : "";
      entries.push(entry(mark, colorOf(series.color), series.name, glyphs));
    }
    if (entries.length > 1) legend.append(...entries);
    for (const mark of figure.marks) {
      const color = colorOf(mark.color);
      const dimension = mark.axis === "x" ? "height" : "width";
      plot.add_layout(new Bokeh.Span({location: mark.value, dimension, line_color: color, line_dash: [5, 4], line_width: 1.5}));
      legend.append(entry("dashed", color, mark.name, null));
    }
    place.replaceChildren();
    shown.push(Bokeh.Plotting.show(plot, place));
  }
  return () => {
    const groups = new Map();
    const before = shown;
    shown = [];
    for (const place of document.querySelectorAll(".plot")) draw(place, groups);
    for (const each of before) each.then(view => view.remove());
  };
})();
