// SPDX-License-Identifier: Apache-2.0
// A browser starts no worker from a disk. There, and only there, the theme's search runs in a
// hidden frame that looks like a worker to both sides; the name is the one that the theme asks for.
"use strict";

if (window.location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const load = (source) =>
        new Promise((done) => {
          const script = inside.document.createElement("script");
          script.src = source;
          script.onload = done;
          inside.document.body.append(script);
        });
      inside.importScripts = (...sources) =>
        sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
      this.ready = load(url);
    }
    postMessage(data) {
      const { contentWindow } = this.frame;
      this.ready.then(() => contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
