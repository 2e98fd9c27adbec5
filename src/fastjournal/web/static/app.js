// Keeps a page alive: figures, times and plots. Every page works without it, standing still.
"use strict";
(() => {
  const body = document.body;
  const $ = (selector, root = document) => root.querySelector(selector);
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const PLACES = ["ready", "future", "held", "leased", "completed", "dead"];
  const set = (node, text) => { if (node && node.textContent !== text) node.textContent = text; };

  // Words: the same as in formatting.py.
  const amount = (n) => (!Number.isInteger(n) && n < 100 ? n.toFixed(1) : Math.round(n).toLocaleString("en-US"));
  const share = (s) => (s === null ? "–" : s >= 0.1 || s === 0 ? `${Math.round(100 * s)} %` : `${(100 * s).toFixed(1)} %`);
  const size = (n) => {
    for (const unit of ["B", "KiB", "MiB", "GiB"]) {
      if (n < 1024) return `${unit === "B" || n >= 100 ? Math.round(n) : n.toFixed(1)} ${unit}`;
      n /= 1024;
    }
    return `${n.toFixed(1)} TiB`;
  };
  const span = (s) => {
    if (s < 1e-3) return `${Math.round(s * 1e6)} µs`;
    if (s < 1) return `${s < 0.01 ? (s * 1e3).toFixed(1) : Math.round(s * 1e3)} ms`;
    return s < 60 ? `${s < 10 ? s.toFixed(1) : Math.round(s)} s` : `${Math.floor(s / 60)} min`;
  };
  const ago = (at, now) => {
    const s = Math.floor(Math.abs(now - at));
    if (s < 1) return "now";
    const [unit, name] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([u]) => s >= u);
    const told = `${Math.floor(s / unit)} ${name}`;
    return at < now ? `${told} ago` : `in ${told}`;
  };

  // The journal's clock, not this machine's.
  let ahead = body.dataset.now ? Number(body.dataset.now) / 1e9 - Date.now() / 1e3 : 0;
  const now = () => Date.now() / 1e3 + ahead;
  const tick = () => { for (const node of $$("time[data-at]")) set(node, ago(Number(node.dataset.at) / 1e9, now())); };
  setInterval(tick, 1000);
  const when = (cell, at) => {
    let node = $("time", cell);
    if (!at) { if (node) cell.innerHTML = '<span class="none">–</span>'; return; }
    if (!node) { cell.textContent = ""; node = cell.appendChild(document.createElement("time")); }
    if (node.dataset.at !== String(at)) {
      node.dataset.at = at;
      node.title = new Date(at / 1e6).toISOString().replace("T", " ").replace("Z", " UTC");
    }
    set(node, ago(at / 1e9, now()));
  };

  // Queues.
  const table = $("#queues tbody");
  const rowOf = new Map(table ? $$("tr", table).map((row) => [row.dataset.queue, row]) : []);
  const depth = (svg, counts) => {
    const whole = counts.reduce((a, b) => a + b, 0);
    let left = 0;
    $$("rect", svg).forEach((rect, i) => {
      const width = whole ? (1000 * counts[i]) / whole : 0;
      rect.setAttribute("x", left.toFixed(2));
      rect.setAttribute("width", width.toFixed(2));
      left += width;
    });
  };
  const newRow = (queue) => {
    const row = $("#queue-row").content.firstElementChild.cloneNode(true);
    row.dataset.queue = queue.url;
    row.dataset.name = queue.name;
    $('[data-f="name"]', row).textContent = queue.name;
    $('[data-f="name"]', row).title = queue.name;
    $("a", row).href = `${body.dataset.base}/queue?name=${queue.url}`;
    const hidden = $('[data-f="url"]', row);
    if (hidden) hidden.value = queue.url;
    rowOf.set(queue.url, row);
    table.append(row);
    return row;
  };
  const showQueues = (told) => {
    if (!table) return;
    for (const queue of told.queues) {
      const row = rowOf.get(queue.url) || newRow(queue);
      PLACES.forEach((place, i) => {
        const cell = $(`[data-f="${place}"]`, row);
        set(cell, amount(queue.counts[i]));
        cell.classList.toggle("zero", !queue.counts[i]);
      });
      depth($("[data-depth]", row), queue.counts);
      when($('[data-f="first"]', row), queue.first);
      when($('[data-f="next"]', row), queue.next);
      const stopped = queue.paused || queue.draining;
      for (const [name, hidden] of [["paused", !queue.paused], ["draining", !queue.draining], ["pause", stopped], ["resume", !stopped]]) {
        const node = $(`[data-f="${name}"]`, row);
        if (node) node.hidden = hidden;
      }
    }
    const there = new Set(told.names);
    for (const [name, row] of rowOf) if (!there.has(name)) { row.remove(); rowOf.delete(name); }
    set($('[data-count="queues"]'), String(rowOf.size));
    $("#no-queues").hidden = rowOf.size > 0;
    const leftOut = $("[data-left-out]");
    leftOut.hidden = !told.left_out;
    set($("span", leftOut), amount(told.left_out));
    if (told.queues.length) arrange();
  };
  let order = null;
  const filter = $("#filter");
  const arrange = () => {
    if (!table) return;
    const wanted = filter.value.trim().toLowerCase();
    for (const row of rowOf.values()) row.hidden = !row.dataset.name.toLowerCase().includes(wanted);
    if (!order) return;
    const value = (row) => order.by === "name" ? row.dataset.name : Number($(`[data-f="${order.by}"]`, row).textContent.replace(/,/g, ""));
    const sorted = [...rowOf.values()].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return (x < y ? -1 : x > y ? 1 : a.dataset.name < b.dataset.name ? -1 : 1) * (order.up ? 1 : -1);
    });
    if (sorted.some((row, i) => table.children[i] !== row)) table.append(...sorted);
  };
  if (filter) filter.addEventListener("input", arrange);
  for (const head of $$("#queues th[data-sort]")) {
    head.tabIndex = 0;
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") head.click(); });
    head.addEventListener("click", () => {
      const by = head.dataset.sort;
      order = { by, up: order && order.by === by ? !order.up : by === "name" };
      for (const other of $$("#queues th[data-sort]")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", order.up ? "ascending" : "descending");
      arrange();
    });
  }

  // Plots.
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const PLOTS = {
    rates: { series: [["puts", "put", "ready"], ["merges", "merged", "held"], ["completions", "done", "completed"], ["failures", "failed", "dead"]], value: amount },
    depth: { series: [["jobs_ready", "ready", "ready"], ["jobs_future", "future", "future"], ["jobs_leased", "leased", "leased"], ["jobs_dead", "dead", "dead"]], value: amount },
    bytes: { series: [["bytes", "bytes", "ready"]], value: size },
    syncs: { series: [["syncs", "syncs", "completed"]], value: amount },
  };
  const WINDOW = 600;
  const HOURS = {
    throughput: { series: [["done", "done", "completed"], ["failed", "failed", "dead"]], value: amount },
    waits: { series: [["wait_p50", "wait p50", "ready"], ["wait_p99", "wait p99", "leased"], ["run_p50", "run p50", "completed"]], value: span },
  };
  const plots = [];
  const clock = (s) => new Date(s * 1e3).toTimeString().slice(0, 8);
  const makePlot = (node, history, kind = PLOTS[node.dataset.plot]) => {
    // Copies: plots of one page begin with the same history, and each goes on by itself.
    const data = ["at", ...kind.series.map(([column]) => column)].map((column) => [...history[column]]);
    const axis = { stroke: () => color("soft"), font: "11px system-ui, sans-serif", grid: { stroke: () => color("line"), width: 1 }, ticks: { show: false } };
    const powers = (u, splits) => splits.map((s) => (Math.abs(Math.log10(s) - Math.round(Math.log10(s))) < 1e-6 ? s : null));
    const HEIGHT = 170;
    const empty = (v) => v === null || v === undefined;
    // What has nothing on either side is no line: it is drawn as a point.
    const alone = (values) => values.flatMap((v, i) => (!empty(v) && empty(values[i - 1]) && empty(values[i + 1]) ? [i] : []));
    const chart = new uPlot({
      width: node.clientWidth, height: HEIGHT,
      scales: { y: kind.value === span ? { distr: 3, range: (u, low, high) => [0.001, 10 ** Math.ceil(Math.log10(Math.max(high || 1, 1) * 1.01))] } : { range: (u, low, high) => [0, Math.max(high * 1.1, 1)] } },
      axes: [
        { ...axis, values: (u, ticks) => ticks.map((t) => clock(t).slice(0, ticks.length > 1 && ticks[1] - ticks[0] < 60 ? 8 : 5)), space: 80, size: 26 },
        { ...axis, ...(kind.value === span ? { filter: powers, grid: { ...axis.grid, filter: powers } } : {}), values: (u, ticks) => ticks.map((t) => (kind.value === size ? size(t) : kind.value === span ? (t ? span(t) : "") : t >= 1e6 ? `${t / 1e6}M` : t >= 1e4 ? `${t / 1e3}k` : t.toLocaleString("en-US"))), size: kind.value === size ? 66 : 48, ...(kind.value === size ? { incrs: Array.from({ length: 45 }, (_, i) => 2 ** i) } : {}) },
      ],
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      legend: { live: true },
      series: [
        { label: "at", value: (u, t) => (t === null ? clock(u.data[0][u.data[0].length - 1] || now()) : clock(t)) },
        ...kind.series.map(([, label, name], n) => ({
          label, stroke: () => color(name), width: 1.6, points: { show: true, size: 5, fill: () => color(name), filter: (u, s) => alone(u.data[s]) },
          value: (u, v) => { const last = u.data[n + 1]; const shown = v === null || v === undefined ? last[last.length - 1] : v; return shown === null || shown === undefined ? "–" : kind.value(shown); },
        })),
      ],
    }, data, node);
    new ResizeObserver(() => chart.setSize({ width: node.clientWidth, height: HEIGHT })).observe(node);
    if (node.dataset.plot) plots.push({ chart, kind, data });
    else scheme.addEventListener("change", () => chart.redraw());
  };
  const showPoint = (point) => {
    if (point.at === undefined) return;
    for (const { chart, kind, data } of plots) {
      if (data[0].length && point.at <= data[0][data[0].length - 1]) continue;
      [point.at, ...kind.series.map(([column]) => point[column])].forEach((value, i) => {
        data[i].push(value);
        if (data[i].length > WINDOW) data[i].shift();
      });
      chart.setData(data);
    }
  };
  scheme.addEventListener("change", () => plots.forEach(({ chart }) => chart.redraw()));
  const nodes = $$("[data-plot]");
  if (nodes.length && window.uPlot) {
    fetch(body.dataset.history).then((answer) => answer.json()).then((history) => nodes.forEach((node) => makePlot(node, history)), () => {});
  }

  for (const queue of new Set($$("[data-hours]").map((node) => node.dataset.queue))) {
    fetch(`${body.dataset.base}/hours.json?queue=${queue}`).then((answer) => answer.json()).then((hours) => {
      for (const node of $$("[data-hours]")) if (node.dataset.queue === queue && window.uPlot) makePlot(node, hours, HOURS[node.dataset.hours]);
    }, () => {});
  }

  // Parts of a page that are made anew by the daemon, every few seconds while somebody looks.
  const fresh = $("[data-fresh]");
  let freshAt = Date.now();
  const renew = () => {
    if (!fresh || document.hidden || Date.now() - freshAt < 2500) return;
    freshAt = Date.now();
    fetch(location.href, { headers: { accept: "text/html" } }).then((answer) => (answer.ok && !answer.redirected ? answer.text() : null)).then((text) => {
      const made = text && $("[data-fresh]", new DOMParser().parseFromString(text, "text/html"));
      if (made && made.innerHTML !== fresh.innerHTML) { fresh.replaceChildren(...made.childNodes); tick(); }
    }, () => {});
  };

  // Figures.
  const show = (told) => {
    ahead = told.at / 1e9 - Date.now() / 1e3;
    for (const node of $$("[data-jobs]")) set(node, amount(told.jobs[node.dataset.jobs]));
    for (const node of $$("[data-rate]")) set(node, amount(told.rates[node.dataset.rate]));
    for (const node of $$("[data-share]")) set(node, share(told[node.dataset.share]));
    for (const node of $$("[data-badge]")) { node.hidden = !told.jobs.dead; set(node, amount(told.jobs.dead)); }
    for (const node of $$("[data-server]")) set(node, amount(told.server[node.dataset.server]));
    const log = told.log;
    const words = {
      state: log.failure ? "stopped" : log.disk_full ? "full" : "well",
      bytes: size(log.bytes), syncs: amount(log.syncs), unsynced: log.unsynced ? span(log.unsynced / 1e9) : "0 s",
      sync_p50: log.sync_p50, sync_p99: log.sync_p99,
    };
    for (const node of $$("[data-log]")) set(node, words[node.dataset.log]);
    const alarm = $("#alarm");
    alarm.hidden = !log.failure && !log.disk_full;
    if (log.failure) set(alarm, `The log has stopped: ${log.failure}. Nothing is taken in any more; restart the daemon.`);
    else if (log.disk_full) set(alarm, "The disk is full: only running work can be finished.");
    showQueues(told);
    showPoint(told.plot);
    renew();
  };
  const pulse = $("#pulse");
  const say = (kind, text, title) => { pulse.className = `pulse ${kind}`; set($("span", pulse), text); pulse.title = title; };
  if (body.dataset.live && window.EventSource) {
    const source = new EventSource(body.dataset.live);
    source.addEventListener("open", () => say("on", "live", "Figures once a second"));
    source.addEventListener("pulse", (event) => { say("on", "live", "Figures once a second"); show(JSON.parse(event.data)); });
    source.addEventListener("error", () => say("off", source.readyState === 2 ? "ended" : "lost", "The daemon does not answer; trying again"));
    window.addEventListener("pagehide", () => source.close());
  }

  const tab = $(".tabs [aria-current]");
  if (tab) tab.parentElement.scrollLeft = tab.offsetLeft - tab.parentElement.clientWidth / 2 + tab.offsetWidth / 2;

  // Forms.
  document.addEventListener("submit", (event) => {
    const question = (event.submitter && event.submitter.dataset.confirm) || event.target.dataset.confirm;
    if (question && !window.confirm(question)) event.preventDefault();
  });
  const chosen = $("#chosen");
  if (chosen) {
    const boxes = $$('input[name="id"]', chosen);
    const all = $("#all");
    const count = () => {
      const number = boxes.filter((box) => box.checked).length;
      for (const button of $$("[data-needs-choice]", chosen)) button.disabled = !number;
      set($("[data-chosen]", chosen), number ? `${number} chosen:` : "Choose jobs to");
      if (all) { all.checked = number === boxes.length; all.indeterminate = number > 0 && number < boxes.length; }
    };
    if (all) all.addEventListener("change", () => { for (const box of boxes) box.checked = all.checked; count(); });
    chosen.addEventListener("change", count);
    count();
  }
})();
