from __future__ import annotations

from playwright.sync_api import Page

# The map drawn by each painter: what share of the pixels, and how different the two pictures are.
BOTH = """async () => {
  const { Scatter } = await import("/static/scatter.js");
  const drawn = ["webgl2", "pixels"].map(kind => {
    const scatter = new Scatter(document.createElement("canvas"), kind);
    scatter.resize(500, 400);
    const place = i => [Math.sin(i) * (i % 70), Math.cos(i * 7) * (i % 50)];
    const ink = i => i % 4 === 3 ? [0, 1, 2, 3, 4, 5, 8][(i >> 2) % 7] : (i * 37) % 256;
    scatter.setPlaces(Float32Array.from(Array.from({length: 3000}, (_, i) => place(i)).flat()));
    scatter.setLook(Uint8Array.from({length: 12000}, (_, i) => ink(i)));
    scatter.fit();
    scatter.draw();
    const copy = document.createElement("canvas");
    copy.width = 500; copy.height = 400;
    const pen = copy.getContext("2d");
    pen.fillStyle = "white";
    pen.fillRect(0, 0, 500, 400);
    pen.drawImage(scatter.canvas, 0, 0);
    return [scatter.kind, pen.getImageData(0, 0, 500, 400).data];
  });
  const [[one, a], [other, b]] = drawn;
  let ink = 0, apart = 0;
  a.forEach((v, i) => { ink += 255 - v; apart += Math.abs(v - b[i]); });
  return {kinds: [one, other], ink: ink / a.length, apart: apart / ink};
}"""


def test_both_painters_draw_the_same_picture(page: Page) -> None:
    drawn = page.evaluate(BOTH)
    assert drawn["kinds"] == ["webgl2", "pixels"]
    assert drawn["ink"] > 5
    assert drawn["apart"] < 0.12  # edges alone
