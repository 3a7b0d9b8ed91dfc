// Search in a page that was opened from the disk. Browsers start no Worker there, so the Worker's script runs in a hidden frame of the page.
// The theme looks for the name IFrameWorker, and for the script in the frame, to find what the script loads.
(() => {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.frame = frame;
      const inside = frame.contentWindow;
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      inside.importScripts = async (...urls) => {
        for (const one of urls) await load(inside, one);
      };
      this.loaded = load(inside, url);
    }

    async postMessage(data) {
      await this.loaded;
      const { contentWindow: inside } = this.frame;
      inside?.dispatchEvent(new inside.MessageEvent("message", { data: structuredClone(data) }));
    }

    terminate() {
      this.frame.remove();
    }
  }

  function load(inside, url) {
    return new Promise((done, failed) => {
      const script = inside.document.createElement("script");
      script.src = new URL(url, location.href).href;
      script.onload = done;
      script.onerror = () => failed(new Error(`${url} cannot be loaded`));
      inside.document.body.append(script);
    });
  }

  if (location.protocol === "file:") window.Worker = window.IFrameWorker = IFrameWorker;
})();
