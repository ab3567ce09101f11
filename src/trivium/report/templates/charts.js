"use strict";
// Draws a chart in each figure.chart element, from the JSON inside the element.
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const format = (value) => value == null ? "" :
  Math.abs(value) >= 1e4 ? value.toLocaleString("en", {notation: "compact", maximumFractionDigits: 2}) :
  String(Number(value.toPrecision(5)));
const plots = [];
for (const figure of document.querySelectorAll("figure.chart")) {
  const chart = JSON.parse(figure.querySelector("script").textContent);
  const box = figure.querySelector("div");
  const data = uPlot.join(chart.series.map((line) => [line.x, line.y]));
  for (const level of chart.levels) data.push(data[0].map(() => level.value));
  const axis = {
    stroke: () => css("--soft"), grid: {stroke: () => css("--rule"), width: 1},
    ticks: {stroke: () => css("--rule"), width: 1}, font: "12px system-ui, sans-serif",
    values: (_, ticks) => ticks.map(format),
  };
  const range = (_, low, high) => {
    const pad = (high - low) * 0.06 || Math.abs(high) / 10 || 1;
    return [chart.from_zero ? 0 : low - pad, high + pad];
  };
  const markers = chart.series.every((line) => line.x.length <= 40);
  const lines = chart.series.map((line) => ({
    label: line.name, stroke: () => css("--c" + line.color), width: 1.8, spanGaps: true,
    points: {show: markers || line.x.length < 2, size: 5, fill: () => css("--paper")}, value: (_, value) => format(value),
  }));
  const levels = chart.levels.map((level) => ({
    label: level.name, stroke: () => css("--soft"), width: 1.5, dash: [5, 4],
    points: {show: false}, value: (_, value) => format(value),
  }));
  const plot = new uPlot({
    width: box.clientWidth, height: 280,
    scales: {x: {time: false}, y: {range}},
    axes: [{...axis, size: 36, label: chart.x_label, labelSize: 22, labelFont: axis.font}, {...axis, size: 76}],
    series: [{value: (_, value) => value == null ? "" : `${chart.x_label} ${format(value)}`}, ...lines, ...levels],
  }, data, box);
  new ResizeObserver(() => plot.setSize({width: box.clientWidth, height: 280})).observe(box);
  plots.push(plot);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach((plot) => plot.redraw()));
