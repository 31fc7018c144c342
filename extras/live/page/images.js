// Images that go with a message: kept as files, sent and exported as data URLs.

import {make} from "./dom.js";

const TYPES = ["png", "jpeg", "webp", "gif", "bmp", "tiff"].map(format => `image/${format}`);
const DATA_URL = /^data:(image\/[a-z]+);base64,([A-Za-z0-9+/]*=*)$/;

export const isImage = ({type}) => /^image\/(?!svg)/.test(type);

/** Returns why an image cannot be sent, "" if it can. `limits` are those of a model that reads images, null for others. */
export function whyRefused({type, size}, limits) {
  if (!limits) return "this model reads text only";
  if (!TYPES.includes(type)) return "images are PNG, JPEG, WebP, GIF, BMP or TIFF files";
  return size > limits.max_image_mb * 2 ** 20 ? `larger than ${limits.max_image_mb} MB, the server's limit` : "";
}

/** Returns the picture of a file; `alt` is "" if its name stands next to it. */
export function makePicture({name, image}, alt = name) {
  const address = URL.createObjectURL(image), picture = make("img", {src: address, alt, title: name});
  for (const event of ["load", "error"]) picture.addEventListener(event, () => URL.revokeObjectURL(address));
  return picture;
}

export const imagesOf = messages => messages.flatMap(({files = []}) => files).map(({image}) => image).filter(Boolean);

/** Returns the data URLs of all images of messages, by image. */
export async function readImages(messages) {
  return new Map(await Promise.all(imagesOf(messages).map(async image => [image, await toDataUrl(image)])));
}

function toDataUrl(image) {
  return new Promise((resolve, reject) => {
    const reader = Object.assign(new FileReader(), {onload: () => resolve(reader.result), onerror: () => reject(reader.error)});
    reader.readAsDataURL(image);
  });
}

/** Returns the image of a data URL, null for any other text. */
export function fromDataUrl(text) {
  const [, type, data] = DATA_URL.exec(text) ?? [];
  if (!TYPES.includes(type)) return null;
  try {
    return new Blob([Uint8Array.from(atob(data), character => character.charCodeAt(0))], {type});
  } catch { // no base64
    return null;
  }
}
