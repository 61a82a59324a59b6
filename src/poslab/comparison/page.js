"use strict";
// Charts, sorting and filtering. The texts and tables of the page do not need this script.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const COLOURS = 8;
  const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
  const escapes = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  const safe = (text) => String(text).replace(/[&<>"]/g, (letter) => escapes[letter]);
  // As in numbers.py: only a share of 1 is shown as 100 %, and only 0 as 0 %.
  function percent(value) {
    const share = value < 1 ? Math.min(100 * value, 99.9999) : 100 * value;
    let decimals = 1;
    while (decimals < 4 && value > 0 && value < 1 && [0, 100].includes(Number(share.toFixed(decimals)))) decimals += 1;
    return `${Number(share.toFixed(decimals))} %`;
  }

  function number(value) {
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1).replace("e+", "e");
    return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
  }

  // Groups: by setting, or by the levels of one axis.
  const hidden = new Set();
  let groupBy = "";
  const groupOf = (job) => (groupBy === "" ? data.settings[job.setting] : job.levels[groupBy] ?? "–");
  const groups = () => (groupBy === "" ? data.settings : data.axes.find((axis) => axis.key === groupBy).levels);
  const style = (at) => ({ colour: `var(--c${at % COLOURS})`, dash: DASHES[Math.floor(at / COLOURS) % DASHES.length] });

  function ticks(low, high, log, room) {
    const found = [];
    if (log) {
      const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
      const every = Math.max(1, Math.ceil((last - first + 1) / room));
      for (let power = first; power <= last; power += every) found.push(10 ** power);
      if (found.length >= 2) return found;
    }
    const rough = (high - low) / Math.max(1, room - 1) || 1, base = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((by) => by * base).find((by) => by >= rough - 1e-12);
    const marks = [];
    for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) marks.push(Number(at.toPrecision(12)));
    return log ? marks.filter((mark) => mark > 0) : marks;
  }

  // Draw one chart into `host`. `series` are {job, xs, ys}; `lines` draws lines, otherwise dots.
  function chart(host, series, options) {
    const { xName, yName, logY, logX, share, lines } = options;
    const shown = series
      .map((one) => ({ ...one, at: groups().indexOf(groupOf(one.job)) }))
      .filter((one) => !hidden.has(groupOf(one.job)));
    const keep = (x, y) => (!logY || y > 0) && (!logX || x > 0);
    let xs = [], ys = [];
    for (const one of shown) one.xs.forEach((x, i) => { if (keep(x, one.ys[i])) { xs.push(x); ys.push(one.ys[i]); } });
    if (!xs.length) {
      host.innerHTML = '<p class="empty">Nothing to draw.</p>';
      return;
    }
    const least = (list) => list.reduce((a, b) => Math.min(a, b)), most = (list) => list.reduce((a, b) => Math.max(a, b));
    let [x0, x1, y0, y1] = [least(xs), most(xs), least(ys), most(ys)];
    if (share) { y0 = 0; y1 = 1; } else if (!logY) y0 = Math.min(0, y0);
    if (x0 === x1) { x0 *= logX ? 0.5 : 1; x1 = logX ? x1 * 2 : x1 + 1; if (!logX) x0 -= 1; }
    if (y0 === y1) { if (logY) { y0 /= 2; y1 *= 2; } else y1 = y0 + 1; }
    if (!lines && !logX) { const pad = 0.05 * (x1 - x0); x0 -= pad; x1 += pad; }
    if (!lines && logX) { x0 /= 1.15; x1 *= 1.15; }

    const width = Math.max(260, host.clientWidth), height = 340;
    const box = { left: 62, right: width - 14, top: 26, bottom: height - 44 };
    const scale = (low, high, from, to, log) => {
      const [a, b] = log ? [Math.log(low), Math.log(high)] : [low, high];
      return (value) => from + ((log ? Math.log(value) : value) - a) / (b - a) * (to - from);
    };
    const px = scale(x0, x1, box.left, box.right, logX), py = scale(y0, y1, box.bottom, box.top, logY);

    const parts = [`<svg viewBox="0 0 ${width} ${height}" height="${height}" role="img" aria-label="${safe(yName)} against ${safe(xName)}, ${shown.length} jobs">`];
    for (const tick of ticks(y0, y1, logY, 6)) {
      const y = py(tick);
      parts.push(`<path class="grid" d="M${box.left} ${y}H${box.right}"/><text x="${box.left - 9}" y="${y + 4}" text-anchor="end">${share ? percent(tick) : number(tick)}</text>`);
    }
    for (const tick of ticks(x0, x1, logX, width > 500 ? 8 : 4)) {
      parts.push(`<path class="axis" d="M${px(tick)} ${box.bottom}v4"/><text x="${px(tick)}" y="${box.bottom + 19}" text-anchor="middle">${number(tick)}</text>`);
    }
    parts.push(`<path class="axis" d="M${box.left} ${box.bottom}H${box.right}"/>`);
    parts.push(`<text x="${box.right}" y="${height - 6}" text-anchor="end">${safe(xName)}</text><text x="0" y="12">${safe(yName)}${logY ? " (log scale)" : ""}</text>`);
    const opacity = shown.length > 200 ? 0.35 : shown.length > 60 ? 0.55 : 0.85;
    parts.push(`<g class="series" stroke-opacity="${opacity}" fill-opacity="${opacity}">`);
    const points = [];
    shown.forEach((one, index) => {
      const { colour, dash } = style(one.at);
      let path = "";
      one.xs.forEach((x, i) => {
        const y = one.ys[i];
        if (!keep(x, y)) return;
        const [left, top] = [px(x), py(y)];
        points.push({ left, top, x, y, index });
        path += `${path ? "L" : "M"}${left.toFixed(1)} ${top.toFixed(1)}`;
        if (!lines) parts.push(`<circle class="dot" cx="${left.toFixed(1)}" cy="${top.toFixed(1)}" r="4.5" fill="${colour}"/>`);
      });
      one.path = path;
      if (lines) parts.push(`<path class="line" d="${path}" stroke="${colour}" stroke-dasharray="${dash}"/>`);
    });
    parts.push('</g><g class="over"></g></svg><div class="tip" hidden></div>');
    host.innerHTML = parts.join("");

    const svg = host.querySelector("svg"), over = host.querySelector(".over"), all = host.querySelector(".series"), tip = host.querySelector(".tip");
    const leave = () => { tip.hidden = true; over.innerHTML = ""; all.classList.remove("faded"); };
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("pointermove", (event) => {
      const frame = svg.getBoundingClientRect(), left = event.clientX - frame.left, top = event.clientY - frame.top;
      let best = null, distance = 45 ** 2;
      for (const point of points) {
        const away = (point.left - left) ** 2 + (point.top - top) ** 2;
        if (away < distance) { distance = away; best = point; }
      }
      if (!best) return leave();
      const one = shown[best.index], { colour, dash } = style(one.at);
      over.innerHTML = (lines ? `<path class="lit" d="${one.path}" stroke="${colour}" stroke-dasharray="${dash}"/>` : "") + `<circle class="spot" cx="${best.left}" cy="${best.top}" r="5.5" fill="${colour}"/>`;
      all.classList.add("faded");
      const seed = one.job.seed === null ? "" : `, seed ${one.job.seed}`;
      const state = one.job.status === "completed" ? "" : ` (${one.job.status})`;
      tip.innerHTML = `<b>${safe(data.settings[one.job.setting])}${seed}${state}</b>${safe(one.job.name)}<br>${safe(xName)} ${number(best.x)}: ${share ? percent(best.y) : number(best.y)}`;
      tip.hidden = false;
      tip.style.left = `${Math.max(0, Math.min(best.left + 14, width - tip.offsetWidth))}px`;
      tip.style.top = `${best.top > height / 2 ? best.top - tip.offsetHeight - 14 : best.top + 14}px`;
    });
  }

  const CURVES = [
    { key: "val/loss", title: "validation loss", x: "step", logY: true },
    { key: "train/loss", title: "training loss", x: "step", logY: true },
    { key: "val/exact_match", title: "exact match", x: "step", share: true },
    { key: "val/accuracy", title: "next-token accuracy", x: "step", share: true },
    { key: "length/exact_match", title: "exact match by length", x: "length", share: true },
    { key: "length/accuracy", title: "next-token accuracy by length", x: "length", share: true },
    { key: "neighbour_similarity", title: "neighbour similarity", x: "positions apart" },
  ];
  const RESULTS = [
    { key: "best/val/loss", title: "best validation loss", logY: true },
    { key: "val/exact_match", title: "exact match", share: true },
    { key: "val/accuracy", title: "next-token accuracy", share: true },
    { key: "steps", title: "first step at 99 % exact match" },
  ];
  const curveOf = (job, key) => job.curves[key] && { job, xs: data.steps[job.curves[key][0]], ys: job.curves[key][1] };
  const dotOf = (job, key) => job.parameters !== null && job.results[key] !== undefined && { job, xs: [job.parameters], ys: [job.results[key]] };
  const pick = (id) => document.getElementById(id);

  function offer(select, choices, has) {
    for (const [at, choice] of choices.entries()) if (data.jobs.some((job) => has(job, choice.key))) select.add(new Option(choice.title, at));
    select.addEventListener("change", draw);
  }

  function draw() {
    const curve = CURVES[pick("curve").value], result = RESULTS[pick("result").value], log = pick("log");
    log.disabled = !curve || !curve.logY;
    if (curve) chart(pick("curves"), data.jobs.map((job) => curveOf(job, curve.key)).filter(Boolean), { ...curve, logY: curve.logY && log.checked, xName: curve.x, yName: curve.title, lines: true });
    if (!result) return;
    const dots = data.jobs.map((job) => dotOf(job, result.key)).filter(Boolean), counts = dots.map((dot) => dot.xs[0]);
    const wide = Math.min(...counts) > 0 && Math.max(...counts) > 20 * Math.min(...counts);
    chart(pick("parameters"), dots, { ...result, logX: wide, xName: "trainable parameters", yName: result.title, lines: false });
  }

  function legend() {
    const used = new Set(data.jobs.map(groupOf));
    const buttons = groups().map((name, at) => ({ name, at })).filter(({ name }) => used.has(name)).map(({ name, at }) => {
      const { colour, dash } = style(at), button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(!hidden.has(name)));
      button.innerHTML = `<svg aria-hidden="true"><path d="M0 4H22" stroke="${colour}" stroke-width="3" stroke-dasharray="${dash}"/></svg>${safe(name)}`;
      button.addEventListener("click", () => {
        if (!hidden.delete(name)) hidden.add(name);
        button.setAttribute("aria-pressed", String(!hidden.has(name)));
        draw();
      });
      return button;
    });
    const all = document.createElement("button");
    all.type = "button";
    all.textContent = "all / none";
    all.addEventListener("click", () => {
      const none = hidden.size === 0;
      hidden.clear();
      if (none) used.forEach((name) => hidden.add(name));
      legend();
      draw();
    });
    pick("legend").replaceChildren(...buttons, ...(buttons.length > 2 ? [all] : []));
  }

  if (pick("curves")) {
    const by = pick("group");
    by.add(new Option("setting", ""));
    for (const axis of data.axes) by.add(new Option(axis.name, axis.key));
    // With more settings than colours, colour by the first axis instead.
    if (data.settings.length > COLOURS && data.axes.length) by.value = data.axes[0].key;
    groupBy = by.value;
    by.addEventListener("change", () => { groupBy = by.value; hidden.clear(); legend(); draw(); });
    offer(pick("curve"), CURVES, (job, key) => job.curves[key]);
    offer(pick("result"), RESULTS, (job, key) => job.parameters !== null && job.results[key] !== undefined);
    pick("log").addEventListener("change", draw);
    legend();
    draw();
    let width = pick("curves").clientWidth;
    new ResizeObserver(() => {
      if (pick("curves").clientWidth !== width) { width = pick("curves").clientWidth; requestAnimationFrame(draw); }
    }).observe(pick("curves"));
  }

  // Tables: a click on a heading sorts, a second click reverses the order; empty cells stay last.
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button")?.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending", sign = down ? -1 : 1;
      for (const other of heads) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keyed = [...body.rows].map((row) => ({ row, key: row.cells[column].dataset.v ?? row.cells[column].textContent }));
      const numeric = keyed.every(({ key }) => key === "" || key === "–" || Number.isFinite(Number(key)));
      const empty = (key) => key === "" || key === "–";
      keyed.sort((a, b) => empty(a.key) - empty(b.key) || (empty(a.key) ? 0 : sign * (numeric ? a.key - b.key : a.key.localeCompare(b.key, "en", { numeric: true }))));
      body.append(...keyed.map(({ row }) => row));
    }));
  }
  const filter = pick("filter"), more = pick("more"), rows = pick("job-table");
  filter?.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let left = 0;
    for (const row of rows.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      left += !row.hidden;
    }
    pick("left").textContent = words.length ? `${left} of ${rows.tBodies[0].rows.length}` : "";
  });
  more?.addEventListener("change", () => rows.classList.toggle("all", more.checked));
})();
