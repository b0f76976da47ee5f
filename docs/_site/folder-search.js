// Search in pages that are opened from a folder: browsers refuse workers there, so a frame runs the theme's.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script>
        self.importScripts = (...all) => all.reduce((before, src) => before.then(() => new Promise(done => {
          const script = Object.assign(document.createElement("script"), { src, onload: done });
          document.body.append(script);
        })), Promise.resolve());
      <\/script><body><script src="${url}"><\/script>`;
      this.ready = new Promise(done => {
        frame.onload = () => {
          frame.contentWindow.postMessage = data => this.tell(data);
          done(frame.contentWindow);
        };
      });
      document.addEventListener("DOMContentLoaded", () => document.body.append(frame));
      if (document.body) document.body.append(frame);
    }
    tell(data) {
      const event = new MessageEvent("message", { data });
      this.onmessage?.(event);
      this.dispatchEvent(event);
    }
    postMessage(data) {
      this.ready.then(inside => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
