// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Screenshots: where they are kept, and the colours of their pixels.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use png::{BitDepth, ColorType, Decoder};

use crate::tools::sh;

/// The directory of screenshots, in the project.
const DIRECTORY: &str = "target/pictures";

/// Returns the file for a screenshot of this name. Its directory is there.
pub fn path(name: &str) -> Result<PathBuf> {
    let dir = sh::project().join(DIRECTORY);
    fs::create_dir_all(&dir)?;
    Ok(dir.join(format!("{name}.png")))
}

/// A screenshot.
pub struct Screenshot {
    /// Unit: pixels.
    width: usize,
    /// The bytes of each pixel, line by line.
    bytes: Vec<u8>,
    bytes_per_pixel: usize,
}

impl Screenshot {
    /// Reads a PNG file of eight bits for each colour.
    pub fn read(path: &Path) -> Result<Self> {
        let name = || path.display().to_string();
        let file = File::open(path).with_context(name)?;
        let mut reader = Decoder::new(BufReader::new(file)).read_info().with_context(name)?;
        let mut bytes = vec![0; reader.output_buffer_size().with_context(name)?];
        let info = reader.next_frame(&mut bytes).with_context(name)?;
        let bytes_per_pixel = match (info.bit_depth, info.color_type) {
            (BitDepth::Eight, ColorType::Rgb) => 3,
            (BitDepth::Eight, ColorType::Rgba) => 4,
            other => anyhow::bail!("{}: {other:?} found, 8 bits of RGB expected", name()),
        };
        Ok(Self { width: info.width as usize, bytes, bytes_per_pixel })
    }

    /// Returns the colour of the pixel that has this point, right and down from the left upper
    /// corner.
    pub fn pixel(&self, [right, down]: [f64; 2]) -> Result<[u8; 3]> {
        let (x, y) = (right as usize, down as usize);
        ensure!(right >= 0.0 && down >= 0.0 && x < self.width, "{right}, {down} is outside");
        let first = (y * self.width + x) * self.bytes_per_pixel;
        let pixel = self.bytes.get(first..first + 3);
        let pixel = pixel.with_context(|| format!("{right}, {down} is below the picture"))?;
        Ok([pixel[0], pixel[1], pixel[2]])
    }

    /// Returns how many pixels have another colour than most have.
    pub fn drawn(&self) -> usize {
        let mut colours = BTreeMap::<&[u8], usize>::new();
        for pixel in self.bytes.chunks_exact(self.bytes_per_pixel) {
            *colours.entry(pixel).or_default() += 1;
        }
        let most = colours.values().max().copied().unwrap_or(0);
        colours.values().sum::<usize>() - most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pixel_is_where_its_picture_has_it() {
        let path = std::env::temp_dir().join(format!("xtask-shot-{}.png", std::process::id()));
        let mut encoder = png::Encoder::new(File::create(&path).unwrap(), 3, 2);
        encoder.set_color(ColorType::Rgb);
        encoder.set_depth(BitDepth::Eight);
        let bytes: Vec<u8> = (0..18).collect();
        encoder.write_header().unwrap().write_image_data(&bytes).unwrap();
        let seen = Screenshot::read(&path).unwrap();
        fs::remove_file(path).unwrap();
        assert_eq!(seen.pixel([0.9, 0.0]).unwrap(), [0, 1, 2]);
        assert_eq!(seen.pixel([2.0, 1.5]).unwrap(), [15, 16, 17]);
        assert_eq!(seen.drawn(), 5);
        for outside in [[3.0, 0.0], [0.0, 2.0], [-1.0, 0.0]] {
            assert!(seen.pixel(outside).is_err(), "{outside:?}");
        }
    }
}
