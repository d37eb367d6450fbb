package volume

import (
	"errors"
	"testing"
)

func TestCheckExpand(t *testing.T) {
	const largest = 100 * BlockSize
	mounted, block := Capability{Access: AccessMount, Mode: SingleNodeWriter}, Capability{Access: AccessBlock, Mode: SingleNodeWriter}
	cases := map[string]struct {
		reason  string
		in      Range
		made    Capability
		use     *Capability
		size    int64
		verdict Verdict
		err     error
	}{
		"Larger":         {reason: "exactly what is required", made: mounted, in: Range{Required: 10*BlockSize + 1}, size: 10*BlockSize + 1, verdict: Proceed},
		"Device":         {reason: "a device consists of blocks", made: block, in: Range{Required: 10*BlockSize + 1}, size: 11 * BlockSize, verdict: Proceed},
		"Again":          {reason: "it is that large", made: mounted, in: Range{Required: 4 * BlockSize}, size: 4 * BlockSize, verdict: AlreadyDone},
		"Smaller":        {reason: "volumes do not shrink", made: mounted, in: Range{Required: 1}, size: 4 * BlockSize, verdict: AlreadyDone},
		"Unset":          {reason: "any size will do", made: mounted, size: 4 * BlockSize, verdict: AlreadyDone},
		"WithinLimit":    {reason: "the lower bound will do", made: mounted, in: Range{Required: 5 * BlockSize, Limit: 9 * BlockSize}, size: 5 * BlockSize, verdict: Proceed},
		"Use":            {reason: "the CO says how it is used", made: block, use: &block, in: Range{Required: 5 * BlockSize}, size: 5 * BlockSize, verdict: Proceed},
		"OtherUse":       {reason: "a directory is no device", made: mounted, use: &block, in: Range{Required: 5 * BlockSize}, err: ErrInvalid},
		"LimitBelow":     {reason: "it would have to shrink", made: mounted, in: Range{Limit: BlockSize}, err: ErrOutOfRange},
		"TooLarge":       {reason: "the driver cannot", made: mounted, in: Range{Required: largest + 1}, err: ErrOutOfRange},
		"DeviceTight":    {reason: "no multiple within the limit", made: block, in: Range{Required: 5*BlockSize + 1, Limit: 5*BlockSize + 2}, err: ErrOutOfRange},
		"Contradiction":  {reason: "required above limit", made: mounted, in: Range{Required: 9, Limit: 5}, err: ErrInvalid},
		"NegativeLimit":  {reason: "sizes are not negative", made: mounted, in: Range{Limit: -1}, err: ErrInvalid},
		"NegativeWanted": {reason: "sizes are not negative", made: mounted, in: Range{Required: -1}, err: ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			v := &Volume{ID: "id", Capacity: 4 * BlockSize, Capabilities: []Capability{c.made}}
			size, verdict, err := v.CheckExpand(&ExpandRequest{ID: "id", Range: c.in, Capability: c.use}, largest)
			if size != c.size || verdict != c.verdict || !errors.Is(err, c.err) {
				t.Errorf("%s: %d, %v, %v, want %d, %v, %v", c.reason, size, verdict, err, c.size, c.verdict, c.err)
			}
			if err == nil && !c.in.Allow(size) {
				t.Errorf("%s: the range does not allow %d", c.reason, size)
			}
		})
	}
}
