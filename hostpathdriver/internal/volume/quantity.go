package volume

import (
	"fmt"
	"math"
	"math/big"
	"strings"

	"github.com/longshore-csi/longshore/driverkit"
)

// ParseQuantity reads a size as Kubernetes writes it: a decimal number with
// an optional suffix Ki, Mi, Gi, Ti, Pi, Ei (powers of 1024) or k, M, G, T,
// P, E (powers of 1000). The result is in bytes, rounded up. Negative and
// too large numbers are an ErrInvalid.
func ParseQuantity(s string) (int64, error) {
	digits, factor := splitSuffix(s)
	if digits == "" || strings.Trim(digits, "0123456789.") != "" {
		return 0, fmt.Errorf("quantity %q: must be a number with an optional suffix such as Gi or G: %w", s, driverkit.ErrInvalid)
	}
	value, ok := new(big.Rat).SetString(digits)
	if !ok {
		return 0, fmt.Errorf("quantity %q: %q is no decimal number: %w", s, digits, driverkit.ErrInvalid)
	}
	value.Mul(value, new(big.Rat).SetInt64(factor))
	size, rest := new(big.Int).QuoRem(value.Num(), value.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		size.Add(size, big.NewInt(1))
	}
	if !size.IsInt64() {
		return 0, fmt.Errorf("quantity %q: exceeds %d bytes: %w", s, int64(math.MaxInt64), driverkit.ErrInvalid)
	}
	return size.Int64(), nil
}

func splitSuffix(s string) (digits string, factor int64) {
	const binary, decimal = "KMGTPE", "kMGTPE"
	if rest, found := strings.CutSuffix(s, "i"); found && rest != "" {
		last := len(rest) - 1
		if i := strings.IndexByte(binary, rest[last]); i >= 0 {
			return rest[:last], int64(1) << (10 * (i + 1))
		}
		return "", 0
	}
	if s == "" {
		return "", 0
	}
	last := len(s) - 1
	i := strings.IndexByte(decimal, s[last])
	if i < 0 {
		return s, 1
	}
	factor = 1
	for range i + 1 {
		factor *= 1000
	}
	return s[:last], factor
}
