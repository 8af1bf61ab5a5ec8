// Search from file://. Browsers refuse workers there, so the search worker runs in a hidden frame.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.onmessage = null
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inside = this.frame.contentWindow
      const load = source => new Promise((resolve, reject) => {
        const script = inside.document.createElement("script")
        script.src = source
        script.onload = resolve
        script.onerror = reject
        inside.document.head.appendChild(script)
      })
      inside.importScripts = (...sources) => sources.reduce((before, one) => before.then(() => load(one)), Promise.resolve())
      inside.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      this.ready = load(new URL(url, document.baseURI).href)
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() { this.frame.remove() }
  }
  window.Worker = window.IFrameWorker
}
