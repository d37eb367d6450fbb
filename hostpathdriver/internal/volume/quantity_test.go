package volume

import (
	"errors"
	"math"
	"strconv"
	"testing"

	"github.com/longshore-csi/longshore/driverkit"
)

func TestParseQuantity(t *testing.T) {
	cases := map[string]struct {
		reason string
		in     string
		want   int64
		err    error
	}{
		"Bytes":          {reason: "no suffix means bytes", in: "1048576", want: 1 << 20},
		"Zero":           {reason: "an empty pool is a pool", in: "0", want: 0},
		"BinaryKi":       {reason: "Ki is 1024", in: "1Ki", want: 1024},
		"BinaryGi":       {reason: "the usual form", in: "100Gi", want: 100 << 30},
		"BinaryTi":       {reason: "the default of --max-volume-size", in: "1Ti", want: 1 << 40},
		"BinaryEi":       {reason: "the largest suffix", in: "7Ei", want: 7 << 60},
		"DecimalK":       {reason: "k is 1000, in lower case", in: "2k", want: 2000},
		"DecimalG":       {reason: "G is a thousand million", in: "3G", want: 3_000_000_000},
		"Fraction":       {reason: "Kubernetes allows 1.5Gi", in: "1.5Gi", want: 3 << 29},
		"FractionUp":     {reason: "a part of a byte is a byte", in: "0.5", want: 1},
		"Largest":        {reason: "the greatest number of bytes", in: "9223372036854775807", want: math.MaxInt64},
		"Empty":          {reason: "nothing is no size", in: "", err: driverkit.ErrInvalid},
		"OnlySuffix":     {reason: "a suffix alone is no number", in: "Gi", err: driverkit.ErrInvalid},
		"OnlyI":          {reason: "i alone is no suffix", in: "i", err: driverkit.ErrInvalid},
		"Negative":       {reason: "sizes are not negative", in: "-1Gi", err: driverkit.ErrInvalid},
		"UpperK":         {reason: "K without i is a mistake", in: "1K", err: driverkit.ErrInvalid},
		"LowerBinary":    {reason: "ki is not Ki", in: "1ki", err: driverkit.ErrInvalid},
		"UnknownSuffix":  {reason: "B is no suffix", in: "10GB", err: driverkit.ErrInvalid},
		"Exponent":       {reason: "exponents are not part of the form", in: "1e3", err: driverkit.ErrInvalid},
		"Ratio":          {reason: "the number type would take 1/3", in: "1/3", err: driverkit.ErrInvalid},
		"TwoPoints":      {reason: "one point at most", in: "1.2.3Gi", err: driverkit.ErrInvalid},
		"Spaces":         {reason: "no space is skipped", in: "1 Gi", err: driverkit.ErrInvalid},
		"TooLarge":       {reason: "8 EiB do not fit", in: "8Ei", err: driverkit.ErrInvalid},
		"TooManyDigits":  {reason: "no overflow into small numbers", in: "99999999999999999999", err: driverkit.ErrInvalid},
		"TooLargeSuffix": {reason: "nor by the suffix", in: "9223372036854775807k", err: driverkit.ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := ParseQuantity(c.in)
			if !errors.Is(err, c.err) {
				t.Fatalf("%s: ParseQuantity(%q): error %v, want %v", c.reason, c.in, err, c.err)
			}
			if got != c.want {
				t.Errorf("%s: ParseQuantity(%q) = %d, want %d", c.reason, c.in, got, c.want)
			}
		})
	}
}

func FuzzParseQuantity(f *testing.F) {
	for _, seed := range []string{"1Gi", "1.5k", "0", "", "i", "9223372036854775807", "8Ei", "..", "0.0000000001Ei"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		size, err := ParseQuantity(in)
		switch {
		case err != nil && !errors.Is(err, driverkit.ErrInvalid):
			t.Errorf("ParseQuantity(%q): error %v is no ErrInvalid", in, err)
		case err == nil && size < 0:
			t.Errorf("ParseQuantity(%q) = %d, must not be negative", in, size)
		case err == nil:
			again, err := ParseQuantity(strconv.FormatInt(size, 10))
			if err != nil || again != size {
				t.Errorf("ParseQuantity(%q) = %d, read again it is %d, %v", in, size, again, err)
			}
		}
	})
}
