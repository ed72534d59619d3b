// Pictures: logarithmic axes, bands, lines labelled at their ends. Texts of numbers come from the server.

import { draw } from "./build.js";

const MARGIN = { top: 14, bottom: 44 };

// Marks inside a range: 1, 2, 5 of each power of ten, or only powers, or only some of them, as there is room.
function inside(low, high, ticks, most) {
  const every = ticks.filter((tick) => tick.value >= low * 0.9999 && tick.value <= high * 1.0001);
  if (every.length <= most) return every;
  const powers = every.filter((tick) => tick.digit === 1);
  return powers.filter((_, i) => i % Math.ceil(powers.length / most) === 0);
}

// From the mark below the least value to the mark above the largest.
function around(values, ticks, most) {
  const low = Math.min(...values), high = Math.max(...values);
  const marks = Math.log10(high / low) > 2.5 ? ticks.filter((tick) => tick.digit === 1) : ticks;
  const from = marks.findLast((tick) => tick.value <= low * 1.0001) ?? marks[0];
  let to = marks.find((tick) => tick.value >= high * 0.9999) ?? marks.at(-1);
  if (to === from) to = marks[marks.indexOf(from) + 1];
  return { low: from.value, high: to.value, ticks: inside(from.value, to.value, ticks, most) };
}

const at = (x, y) => `${x.toFixed(2)} ${y.toFixed(2)}`;

// A smooth curve through all points that rises and falls only where they do (monotone cubic pieces, after Fritsch and
// Carlson): between two points it stays between their heights. Forwards, or backwards as the second edge of a band.
function path(points, start = "M") {
  const slopes = points.slice(1).map(([x, y], i) => (y - points[i][1]) / (x - points[i][0]));
  const tangents = points.map((_, i) => {
    const [before, after] = [slopes[i - 1], slopes[i]];
    if (before === undefined || after === undefined) return before ?? after ?? 0;
    if (before * after <= 0) return 0;
    const [left, right] = [Math.abs(points[i][0] - points[i - 1][0]), Math.abs(points[i + 1][0] - points[i][0])];
    return 3 * (left + right) / ((2 * right + left) / before + (right + 2 * left) / after);
  });
  return points.map(([x, y], i) => {
    if (!i) return start + at(x, y);
    const [x0, y0] = points[i - 1], step = (x - x0) / 3;
    return `C${at(x0 + step, y0 + step * tangents[i - 1])} ${at(x - step, y - step * tangents[i])} ${at(x, y)}`;
  }).join("");
}

// picture: { label, xlabel, ylabel, lines: [{ name, label, points: [{ x, lower, upper, xtext, text }] }], mark, fixed }
export function chart(where, picture, ticks) {
  const lines = picture.lines.map((line) => ({ ...line, points: line.points.filter((p) => p.upper > 0) })).filter((line) => line.points.length);
  if (!lines.length) { where.replaceChildren(); return; }
  const width = Math.max(300, where.clientWidth || 560), height = Math.round(Math.min(340, Math.max(250, 0.62 * width)));
  const longest = Math.max(...lines.map((line) => (line.short ?? line.label).length));
  const right = 14 + 7.2 * longest;
  const all = lines.flatMap((line) => line.points);
  const y = around(all.flatMap((p) => p.lower > 0 && p.lower > p.upper / 20 ? [p.lower, p.upper] : [p.upper]), ticks, 7);
  const left = 32 + 6.9 * Math.max(...y.ticks.map((tick) => tick.text.length)); // the name of the axis stands beside its marks
  const across = width - left - right, down = height - MARGIN.top - MARGIN.bottom;
  const xs = all.map((p) => p.x);
  const x = picture.fixed ? around(xs, ticks, across / 48) : { low: Math.min(...xs), high: Math.max(...xs) };
  x.ticks ??= inside(x.low, x.high, ticks, across / 52);
  if (!(x.high > x.low)) x.high = 1.01 * x.low;
  const px = (value) => left + across * Math.log(value / x.low) / Math.log(x.high / x.low);
  const py = (value) => MARGIN.top + down * (1 - Math.log(Math.max(value, y.low) / y.low) / Math.log(y.high / y.low));
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": picture.label, class: "picture" });
  for (const tick of y.ticks) {
    svg.append(draw("line", { class: "grid", x1: left, x2: left + across, y1: py(tick.value), y2: py(tick.value) }));
    svg.append(draw("text", { class: "tick", x: left - 8, y: py(tick.value) + 4, "text-anchor": "end" }, tick.text));
  }
  for (const tick of x.ticks) {
    svg.append(draw("line", { class: "grid", x1: px(tick.value), x2: px(tick.value), y1: MARGIN.top, y2: MARGIN.top + down }));
    svg.append(draw("text", { class: "tick", x: px(tick.value), y: height - 26, "text-anchor": "middle" }, tick.text));
  }
  svg.append(draw("text", { class: "axis", x: left + across / 2, y: height - 7, "text-anchor": "middle" }, picture.xlabel));
  svg.append(draw("text", { class: "axis", x: -(MARGIN.top + down / 2), y: 11, "text-anchor": "middle", transform: "rotate(-90)" }, picture.ylabel));
  const labels = [];
  for (const line of lines) {
    const points = line.points;
    if (points.some((p) => p.lower > 0 && p.lower < 0.98 * p.upper)) {
      const back = points.toReversed().map((p) => [px(p.x), py(p.lower > 0 ? p.lower : y.low)]);
      svg.append(draw("path", { class: `band ${line.name}`, d: `${path(points.map((p) => [px(p.x), py(p.upper)]))}${path(back, "L")}Z` }));
    }
    svg.append(draw("path", { class: `line ${line.name}`, d: path(points.map((p) => [px(p.x), py(p.upper)])) }));
    for (const p of line.points) {
      if (!p.xtext) continue;
      svg.append(draw("circle", { class: `dot ${line.name}`, cx: px(p.x), cy: py(p.upper), r: line.dots && points.length <= 60 ? 2 : 7, ...(line.dots && points.length <= 60 ? {} : { "fill-opacity": 0 }) },
        draw("title", {}, `${line.label}, ${picture.xname} ${p.xtext}: between ${p.text.lower} and ${p.text.upper}`)));
    }
    const last = points.at(-1);
    labels.push({ name: line.name, text: line.short ?? line.label, at: py(last.upper) });
  }
  if (picture.mark) {
    svg.append(draw("line", { class: "now", x1: px(picture.mark.x), x2: px(picture.mark.x), y1: MARGIN.top, y2: MARGIN.top + down }));
    for (const p of picture.mark.points.toReversed()) {
      if (p.upper > 0) svg.append(draw("circle", { class: `mark ${p.name}`, cx: px(picture.mark.x), cy: py(p.upper), r: 5 }));
    }
  }
  // Labels at the ends of the lines, at least a line of text apart.
  labels.sort((a, b) => a.at - b.at);
  labels.forEach((label, i) => { if (i && label.at < labels[i - 1].at + 15) label.at = labels[i - 1].at + 15; });
  const over = labels.length ? labels.at(-1).at - (MARGIN.top + down) : 0;
  for (const label of labels) {
    svg.append(draw("text", { class: `end ${label.name}`, x: left + across + 8, y: label.at + 4 - Math.max(0, over) }, label.text));
  }
  where.replaceChildren(svg);
}

// Where the epsilons stand on one scale.
export function ruler(where, marks, ticks) {
  const shown = marks.filter((mark) => mark.value > 0);
  if (!shown.length) { where.replaceChildren(); return; }
  const width = Math.max(280, where.clientWidth || 600), height = 62, left = 26, across = width - 2 * left;
  const { low, high, ticks: shownTicks } = around([...shown.map((mark) => mark.value), 0.1, 10], ticks.filter((tick) => tick.digit === 1), width / 56);
  const px = (value) => left + across * Math.log(value / low) / Math.log(high / low);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", class: "picture",
    "aria-label": `Epsilon on a logarithmic scale: ${shown.map((mark) => `${mark.label} ${mark.text}`).join(", ")}` });
  svg.append(draw("line", { class: "rail", x1: left, x2: left + across, y1: 30, y2: 30 }));
  for (const tick of shownTicks) {
    svg.append(draw("line", { class: "grid", x1: px(tick.value), x2: px(tick.value), y1: 25, y2: 35 }));
    svg.append(draw("text", { class: "tick", x: px(tick.value), y: 52, "text-anchor": "middle" }, tick.text));
  }
  // The large one first: a small one beside it stays in sight.
  for (const mark of shown.toSorted((a, b) => Number(b.main) - Number(a.main))) {
    svg.append(draw("circle", { class: `mark ${mark.name}`, cx: px(mark.value), cy: 30, r: mark.main ? 8 : 5 }, draw("title", {}, `${mark.label}: ${mark.text}`)));
  }
  where.replaceChildren(svg);
}
