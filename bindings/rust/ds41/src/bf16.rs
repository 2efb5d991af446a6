//! The upper half of an f32.
use std::cmp::Ordering;
use std::fmt;

/// A bfloat16 value, as inputs and outputs of the layers have them.
///
/// Compares as the number that it stands for: NaN is equal to nothing, -0 to 0. For the same bits compare
/// [`to_bits`](Self::to_bits).
///
/// ```
/// use ds41::Bf16;
/// assert_eq!(Bf16::from_f32(1.5).to_f32(), 1.5);
/// assert_eq!(Bf16::from_f32(-2.0).to_bits(), 0xc000);
/// ```
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Bf16(u16);

impl Bf16 {
    /// 0.
    pub const ZERO: Self = Self(0);
    /// A quiet NaN.
    pub const NAN: Self = Self(0x7fc0);
    /// Positive infinity.
    pub const INFINITY: Self = Self(0x7f80);

    /// The value of a bit pattern.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// The bit pattern: the upper half of the f32's.
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// The nearest value, the even one of two; NaN stays NaN.
    pub fn from_f32(value: f32) -> Self {
        let bits = value.to_bits();
        if value.is_nan() {
            return Self((bits >> 16) as u16 | 0x40); // rounding could carry it into the infinity
        }
        let odd = bits >> 16 & 1;
        Self(((bits + 0x7fff + odd) >> 16) as u16)
    }

    /// The same number, exactly.
    pub fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    /// Whether it is no number.
    pub fn is_nan(self) -> bool {
        self.to_f32().is_nan()
    }

    /// See bit patterns as values, without a copy.
    pub fn from_bits_slice(bits: &[u16]) -> &[Self] {
        // SAFETY: transparent over u16.
        unsafe { std::slice::from_raw_parts(bits.as_ptr().cast(), bits.len()) }
    }

    /// See bit patterns as values, without a copy.
    pub fn from_bits_slice_mut(bits: &mut [u16]) -> &mut [Self] {
        // SAFETY: transparent over u16, and any bits are a value in both directions.
        unsafe { std::slice::from_raw_parts_mut(bits.as_mut_ptr().cast(), bits.len()) }
    }
}

impl PartialEq for Bf16 {
    fn eq(&self, other: &Self) -> bool {
        self.to_f32() == other.to_f32()
    }
}

impl PartialOrd for Bf16 {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.to_f32().partial_cmp(&other.to_f32())
    }
}

impl From<Bf16> for f32 {
    fn from(value: Bf16) -> Self {
        value.to_f32()
    }
}

impl fmt::Debug for Bf16 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_f32(), f)
    }
}

impl fmt::Display for Bf16 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.to_f32(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_survives_the_way_to_f32_and_back() {
        for bits in 0..=u16::MAX {
            let value = Bf16::from_bits(bits);
            let back = Bf16::from_f32(value.to_f32());
            if value.is_nan() {
                assert!(back.is_nan());
            } else {
                assert_eq!(back.to_bits(), bits);
            }
        }
    }

    #[test]
    fn halves_are_rounded_to_even() {
        let rounded = |bits: u32| Bf16::from_f32(f32::from_bits(bits)).to_bits();
        assert_eq!(rounded(0x3f80_8000), 0x3f80); // a tie, down to even
        assert_eq!(rounded(0x3f81_8000), 0x3f82); // a tie, up to even
        assert_eq!(rounded(0x3f80_8001), 0x3f81);
        assert_eq!(rounded(0x3f80_7fff), 0x3f80);
        assert_eq!(rounded(0x7f7f_ffff), 0x7f80); // beyond the largest: infinity
        assert_eq!(rounded(0xffff_ffff) & 0x7fc0, 0x7fc0); // NaN
        assert_eq!(rounded(0x7f80_0001) & 0x7fc0, 0x7fc0); // NaN whose upper half alone would be infinity
    }

    #[test]
    fn slices_of_bits_are_seen_as_values() {
        let mut bits = [0x3f80, 0xc000];
        assert_eq!(Bf16::from_bits_slice(&bits), [Bf16::from_f32(1.0), Bf16::from_f32(-2.0)]);
        Bf16::from_bits_slice_mut(&mut bits)[1] = Bf16::ZERO;
        assert_eq!(bits, [0x3f80, 0]);
    }
}
