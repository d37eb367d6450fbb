package testbed

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
)

// SoakSetting returns the environment variable LEAKTEST_<name>, by which make soak sets a soak test, or its default.
func SoakSetting(name, preset string) string { return cmp.Or(os.Getenv("LEAKTEST_"+name), preset) }

// SoakSeeds returns the seeds that the setting SEED lists, "1,7" or "1..5", or a random one. The test fails if it lists anything else.
func SoakSeeds(t testing.TB) []uint64 {
	t.Helper()
	var list []uint64
	for _, text := range strings.Split(SoakSetting("SEED", fmt.Sprint(rand.Uint64())), ",") {
		first, last, ok := strings.Cut(text, "..")
		if !ok {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 64)
		to, err2 := strconv.ParseUint(last, 10, 64)
		if err := errors.Join(err1, err2); err != nil || to < from {
			t.Fatalf("SEED=%s: must be numbers, or the first and the last of some as in 1..5", text)
		}
		for seed := from; seed <= to; seed++ {
			list = append(list, seed)
		}
	}
	return list
}
