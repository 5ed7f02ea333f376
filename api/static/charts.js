// Draws each chart of the page from its JSON. A chart inside a closed <details> is drawn when it is opened.
(function () {
  "use strict";
  var config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

  function draw(place) {
    if (place.dataset.drawn || place.closest("details:not([open])")) return;
    place.dataset.drawn = "yes";
    var source = document.getElementById(place.dataset.chart);
    try {
      var figure = JSON.parse(source.textContent);
      place.textContent = "";
      Plotly.newPlot(place, figure.data, figure.layout, config);
    } catch (error) {
      place.textContent = "The chart cannot be drawn here (" + error.message + "). The table below has the same numbers.";
    }
  }

  function drawAll() {
    document.querySelectorAll(".plot").forEach(draw);
  }

  document.addEventListener("toggle", drawAll, true);
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (one) { one.open = true; });
    drawAll();
  });
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", drawAll);
  else drawAll();
})();
