"use strict";
// A page opened from a disk may not start a worker. There, the search of the site runs in a frame of the page instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #inside;

    constructor(address) {
      super();
      const frame = document.createElement("iframe"), script = document.createElement("script");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      script.src = address;
      this.#inside = new Promise(resolve => { script.onload = () => resolve(inside); });
      inside.document.head.append(script);
    }

    async postMessage(data) {
      const inside = await this.#inside;
      inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
