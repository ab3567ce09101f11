// The search runs in a Web Worker, which browsers refuse to pages of file://. There this class
// takes its place: the same script in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = true; // asked for by the search, which then finds its scripts from here
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.body.appendChild(document.createElement("iframe"));
      this.frame.hidden = true;
      this.inside = this.frame.contentWindow;
      this.inside.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data }));
      // The search of a language awaits scripts of its own, one after the other.
      this.inside.importScripts = (...addresses) =>
        addresses.reduce((before, one) => before.then(() => this.load(one)), Promise.resolve());
      this.loaded = this.load(address);
    }
    load(address) {
      const script = this.frame.contentDocument.createElement("script");
      const loaded = new Promise((resolve) => (script.onload = resolve));
      script.src = new URL(address, location);
      this.frame.contentDocument.body.append(script);
      return loaded;
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
