"use strict";
// Everything the page does: switch selections, sort tables, say what a number rests on, draw charts. Text from the data
// is only ever set as text; no markup is made of it.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const one = (query) => document.querySelector(query);
  const rule = () => one("input[name=selection]:checked").value;

  // --- light and dark ---
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  one("#theme").addEventListener("click", () => {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    redraw();
  });
  dark.addEventListener("change", () => redraw());

  // --- selections ---
  const choose = () => {
    for (const part of all("[data-selection]")) part.hidden = part.dataset.selection !== rule();
    redraw();
  };
  for (const input of all("input[name=selection]")) input.addEventListener("change", choose);

  // --- sorting ---
  const key = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.value === undefined) return cell.textContent.trim().toLowerCase();
    return cell.dataset.value === "" ? null : Number(cell.dataset.value);
  };
  const sort = (button) => {
    const heading = button.closest("th");
    const table = button.closest("table");
    const column = heading.cellIndex;
    const numeric = heading.classList.contains("num");
    const before = heading.getAttribute("aria-sort");
    const up = before ? before === "descending" : !numeric; // numbers: the largest first
    for (const other of all("th[aria-sort]", table)) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => {
      const [x, y] = [key(a, column), key(b, column)];
      if (x === null || y === null) return (x === null) - (y === null); // what is missing stays last
      return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
    });
    table.tBodies[0].append(...rows);
    rove(table);
  };
  for (const button of all(".sort")) button.addEventListener("click", () => sort(button));

  // --- what a number rests on ---
  const tip = one("#tip");
  const words = (row) => {
    const where = `${row.algorithm}, ${row.dataset}, ${row.test === "average" ? "mean over test domains" : "tested on " + row.test}`;
    if (row.accuracy === null) return `${where}\nno number: ${row.why}`;
    const error = row.standard_error === null ? "" : ` ± ${row.standard_error.toFixed(2)}`;
    const draws = row.draws[0] === row.draws[1] ? row.draws[0] : `${row.draws[0]} to ${row.draws[1]}`;
    const lines = [where, `${row.accuracy.toFixed(2)}${error} %, n = ${row.n}, ${row.selection}, of ${draws} draws`];
    for (const [trial, job, draw, step] of row.chosen) lines.push(`trial ${trial}: job ${job}, draw ${draw}, step ${step}`);
    return lines.join("\n");
  };
  const show = (cell) => {
    const row = data.numbers[Number(cell.dataset.number)];
    if (!row) return;
    tip.textContent = words(row);
    tip.hidden = false;
    cell.setAttribute("aria-describedby", "tip");
    told = cell;
    settle();
  };
  let told = null; // the number that the tip speaks of
  const settle = () => {
    if (!told) return;
    const box = told.getBoundingClientRect();
    const size = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(box.left, window.innerWidth - size.width - 8))}px`;
    const below = box.bottom + 6;
    tip.style.top = `${below + size.height < window.innerHeight ? below : box.top - size.height - 6}px`;
  };
  const hide = () => {
    tip.hidden = true;
    told?.removeAttribute("aria-describedby");
    told = null;
  };
  for (const event of ["mouseover", "focusin", "click"]) {
    document.addEventListener(event, (happened) => {
      const cell = happened.target.closest?.(".cell");
      hide();
      if (cell) show(cell);
    });
  }
  document.addEventListener("scroll", settle, { passive: true, capture: true });

  // One stop of the tab key for each table; arrows move between its numbers.
  const cells = (row) => all(".cell", row);
  const rove = (table) => {
    if (!table.classList.contains("roving")) return;
    all(".cell", table).forEach((cell, place) => { cell.tabIndex = place ? -1 : 0; });
  };
  all("table.roving").forEach(rove);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    const cell = event.target.closest?.(".cell");
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!cell || !move) return;
    const rows = [...cell.closest("tbody").rows];
    const line = cells(cell.parentElement);
    const row = rows[rows.indexOf(cell.parentElement) + move[0]];
    const next = row && cells(row)[line.indexOf(cell) + move[1]];
    if (next) {
      event.preventDefault();
      cell.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
  });

  // --- all numbers ---
  const MOST = 400;
  const fill = () => {
    const wanted = one("#numbers-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (row) => [row.dataset, row.selection, row.algorithm, row.test, ...row.chosen.flat()].join(" ").toLowerCase();
    const found = data.numbers.filter((row) => wanted.every((word) => text(row).includes(word)));
    const body = one("#numbers-table tbody");
    body.replaceChildren(...found.slice(0, MOST).map((row) => {
      const line = document.createElement("tr");
      const jobs = row.chosen.map(([trial, job, draw, step]) => `${trial}: ${job}, ${draw}, ${step}`).join("; ") || row.why;
      const number = (value) => (value === null ? "–" : value.toFixed(2));
      const shown = [row.dataset, row.selection, row.algorithm, row.test, number(row.accuracy), number(row.standard_error), row.n, jobs];
      shown.forEach((value, place) => {
        const cell = line.insertCell();
        cell.textContent = value;
        if (place >= 4 && place <= 6) cell.className = "num";
      });
      return line;
    }));
    one("#numbers-count").textContent = found.length > MOST ? `the first ${MOST} of ${found.length}` : `${found.length}`;
  };
  one("#numbers")?.addEventListener("toggle", fill, { once: true });
  one("#numbers-filter")?.addEventListener("input", fill);
  one("#save").addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([data.csv], { type: "text/csv" }));
    link.download = "numbers.csv";
    link.click();
  });

  // --- charts ---
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  const colour = (name) => { // what a colour of the style sheet is, light or dark
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const axis = (title, range) => ({
    title: { text: title, font: { size: 13 } }, gridcolor: colour("--line"), zerolinecolor: colour("--line"),
    linecolor: colour("--line"), automargin: true, ...(range ? { range } : {}),
  });
  const layout = (about, count) => ({ // of so many traces
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
    font: { color: colour("--ink"), size: 13, family: getComputedStyle(document.body).fontFamily },
    margin: { l: 56, r: 16, t: 12, b: 48 }, height: about.height || 400 + 22 * Math.ceil(count / 6),
    showlegend: about.legend !== false, legend: { orientation: "h", y: -0.22, yanchor: "top" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--soft"), activecolor: colour("--accent") },
    hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--line"), font: { color: colour("--ink") }, align: "left" },
    xaxis: { ...axis(about.x, about.range_x), ...(about.log ? { type: "log", dtick: "D2", exponentformat: "power" } : {}), ...(about.categories ? { type: "category" } : {}) },
    yaxis: {
      ...axis(about.y, about.range_y), ...(about.categories ? { type: "category" } : {}),
      ...(about.reverse_y ? { autorange: "reversed" } : {}),
    },
  });
  const narrow = () => window.innerWidth < 640;
  const buttons = [["toImage", "zoom2d", "pan2d", "resetScale2d"]];
  const settings = () => ({ displaylogo: false, responsive: true, modeBarButtons: buttons, displayModeBar: narrow() ? false : "hover" });
  const seen = new Set();
  const draw = (place) => {
    const name = place.dataset.chart;
    const known = name === "draws" ? drawsChart() : data.charts[name];
    const chart = known && (known.traces ? known : known[rule()]);
    place.hidden = !chart;
    if (!chart) return;
    const traces = chart.traces.map((trace) => !trace.muted ? trace : {
      ...trace, mode: narrow() ? "markers" : trace.mode, textfont: { ...trace.textfont, color: colour("--soft") },
    });
    Plotly.react(place, traces, layout(chart.layout, traces.length), settings());
  };
  const redraw = () => { for (const place of seen) draw(place); };

  // Hyperparameters against accuracy, made here from the jobs.
  const setting = one("#draws-setting");
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); // plotly reads tags
  const options = (select, names) => select.replaceChildren(...names.map((name) => new Option(name, name)));
  const drawsChart = () => {
    const jobs = data.draws[Number(setting.value)];
    const [name, tested, who] = ["name", "tested", "algorithm"].map((what) => one(`#draws-${what}`).value);
    const is = (wanted, value) => wanted === "all" || wanted === value;
    const points = jobs.points.filter((point) => name in point.values && is(tested, point.tested) && is(who, point.algorithm));
    const values = points.map((point) => point.values[name]);
    const numeric = values.every((value) => typeof value === "number");
    const log = numeric && Math.min(...values) > 0 && Math.max(...values) > 8 * Math.min(...values);
    const names = [...new Set(points.map((point) => point.algorithm))].sort();
    const traces = names.map((algorithm) => {
      const mine = points.filter((point) => point.algorithm === algorithm);
      const how = data.looks[algorithm] || { color: "#8C8C8C", symbol: "circle" };
      return {
        type: "scatter", mode: "markers", name: plain(algorithm),
        x: mine.map((point) => numeric ? point.values[name] : String(point.values[name])), y: mine.map((point) => point.accuracy),
        text: mine.map((point) => plain(`${algorithm}, tested on ${point.tested}, draw ${point.draw}, trial ${point.trial}`)),
        marker: { color: how.color, symbol: how.symbol, size: 8, opacity: 0.8 },
        hovertemplate: `%{text}<br>${plain(name)} %{x:.3g}: %{y:.1f} %<extra></extra>`,
      };
    });
    return { traces, layout: { x: plain(name), y: "test accuracy, %", log, categories: false } };
  };
  if (setting) {
    const refill = () => {
      const jobs = data.draws[Number(setting.value)];
      options(one("#draws-name"), jobs.names);
      options(one("#draws-tested"), ["all", ...jobs.tested]);
      options(one("#draws-algorithm"), ["all", ...new Set(jobs.points.map((point) => point.algorithm))]);
      if (jobs.names.includes("lr")) one("#draws-name").value = "lr";
    };
    refill();
    setting.addEventListener("change", refill);
    for (const select of all(".choices select")) {
      select.addEventListener("change", () => { const place = one("[data-chart=draws]"); if (seen.has(place)) draw(place); });
    }
  }

  // Charts are drawn when they are about to be seen, so that the page opens at once.
  const arrive = (place) => { if (!seen.has(place)) { seen.add(place); draw(place); } };
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) arrive(entry.target);
  }, { rootMargin: "300px" });
  for (const place of all(".chart")) watch.observe(place);
  window.addEventListener("beforeprint", () => all(".chart").forEach(arrive));

  // The section that is being read.
  const links = new Map(all("nav a").map((link) => [link.getAttribute("href").slice(1), link]));
  const reading = new IntersectionObserver((entries) => {
    for (const entry of entries) links.get(entry.target.id)?.classList.toggle("here", entry.isIntersecting);
  }, { rootMargin: "-25% 0px -70% 0px" });
  for (const section of all("section[id]")) reading.observe(section);

  choose();
})();
