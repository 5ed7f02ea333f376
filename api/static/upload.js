// Sends the chosen file as the raw body of a PUT, shows how far it is, and goes to the trace's page.
(function () {
  "use strict";
  var form = document.getElementById("upload");
  if (!form) return;
  var file = document.getElementById("file");
  var button = document.getElementById("upload-button");
  var bar = document.getElementById("upload-progress");
  var message = document.getElementById("upload-message");
  button.disabled = false;
  document.getElementById("no-script").hidden = true;

  function fail(title, items) {
    message.className = "error";
    message.textContent = "";
    var head = document.createElement("p");
    head.textContent = title;
    message.appendChild(head);
    var list = document.createElement("ul");
    items.forEach(function (text) {
      var item = document.createElement("li");
      item.textContent = text;
      list.appendChild(item);
    });
    if (items.length) message.appendChild(list);
    bar.hidden = true;
    button.disabled = false;
    message.focus();
  }

  form.addEventListener("submit", function (event) {
    event.preventDefault();
    var chosen = file.files[0];
    if (!chosen) {
      fail("Choose a file first.", []);
      return;
    }
    var query = new URLSearchParams();
    query.set("name", document.getElementById("name").value.trim() || chosen.name);
    ["format", "time_unit", "zone", "year", "repeated_hour", "clock_restarts", "keep_far_off", "prompt_includes_cached",
      "rows_are_requests", "keep_duplicates", "ignore_status", "turn_lengths", "block_size", "ids", "stream", "max_rejected_share"].forEach(function (name) {
      var field = document.getElementById("f-" + name);
      if (field && field.value.trim()) query.set(name, field.value.trim());
    });
    document.getElementById("f-map").value.split(/[,\n]/).forEach(function (pair) {
      if (pair.trim()) query.append("map", pair.trim());
    });
    button.disabled = true;
    bar.hidden = false;
    message.className = "";
    message.textContent = "Uploading " + chosen.name;
    var request = new XMLHttpRequest();
    request.open("PUT", form.dataset.target + "?" + query.toString());
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.upload.addEventListener("progress", function (step) {
      if (!step.lengthComputable) return;
      bar.value = step.loaded / step.total;
      message.textContent = "Uploading " + chosen.name + ": " + Math.round(100 * bar.value) + " %";
    });
    request.addEventListener("error", function () {
      fail("The connection broke. Check that the service is up, then try again.", []);
    });
    request.addEventListener("load", function () {
      var answer = {};
      try { answer = JSON.parse(request.responseText); } catch (error) { answer = {}; }
      if (request.status >= 200 && request.status < 300 && answer.id) {
        window.location.assign("/traces/" + encodeURIComponent(answer.id));
        return;
      }
      var items = (answer.errors || []).map(function (one) {
        var cure = one.cure && one.detail.indexOf(one.cure) < 0 ? " (" + one.cure + ")" : "";
        return (one.field ? one.field + ": " : "") + one.detail + cure;
      });
      fail(answer.detail || "The upload was refused (status " + request.status + ").", items);
    });
    request.send(chosen);
  });
})();
