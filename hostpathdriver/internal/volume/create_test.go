package volume

import (
	"errors"
	"testing"
)

func TestRangeSize(t *testing.T) {
	const largest = 10 << 30
	cases := map[string]struct {
		reason  string
		in      Range
		largest int64
		want    int64
		err     error
	}{
		"Unset":            {reason: "the driver decides", want: DefaultSize},
		"Required":         {reason: "exactly what is required", in: Range{Required: 5}, want: 5},
		"RequiredAndLimit": {reason: "the lower bound will do", in: Range{Required: 5, Limit: 9}, want: 5},
		"LimitSmall":       {reason: "the default is cut to the limit", in: Range{Limit: 7}, want: 7},
		"LimitLarge":       {reason: "a limit is no wish", in: Range{Limit: 9 << 30}, want: DefaultSize},
		"SmallDriver":      {reason: "the default is cut to the largest volume", largest: 3, want: 3},
		"Largest":          {reason: "the bound itself is allowed", in: Range{Required: largest}, want: largest},
		"TooLarge":         {reason: "the driver cannot", in: Range{Required: largest + 1}, err: ErrOutOfRange},
		"Contradiction":    {reason: "required above limit", in: Range{Required: 9, Limit: 5}, err: ErrInvalid},
		"NegativeRequired": {reason: "sizes are not negative", in: Range{Required: -1}, err: ErrInvalid},
		"NegativeLimit":    {reason: "limits neither", in: Range{Limit: -1}, err: ErrInvalid},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			bound := c.largest
			if bound == 0 {
				bound = largest
			}
			got, err := c.in.Size(bound)
			if !errors.Is(err, c.err) || got != c.want {
				t.Errorf("%s: Size = %d, %v, want %d, %v", c.reason, got, err, c.want, c.err)
			}
			if err == nil && !c.in.Allow(got) {
				t.Errorf("%s: the range does not allow its own size %d", c.reason, got)
			}
		})
	}
}

func TestDiskSize(t *testing.T) {
	const largest = 10*BlockSize + 1
	cases := map[string]struct {
		reason string
		in     Range
		least  int64
		want   int64
		err    error
	}{
		"Exact":        {reason: "nothing to round", in: Range{Required: 2 * BlockSize}, want: 2 * BlockSize},
		"Up":           {reason: "never less than required", in: Range{Required: BlockSize + 1}, want: 2 * BlockSize},
		"Byte":         {reason: "one block at least", in: Range{Required: 1}, want: BlockSize},
		"Default":      {reason: "the largest, rounded down: nothing was required", want: 10 * BlockSize},
		"LimitDown":    {reason: "a limit alone is rounded down", in: Range{Limit: 3*BlockSize + 5}, want: 3 * BlockSize},
		"LimitTight":   {reason: "no multiple between", in: Range{Required: BlockSize + 1, Limit: BlockSize + 2}, err: ErrOutOfRange},
		"LimitSmall":   {reason: "no device is smaller than a block", in: Range{Limit: 100}, err: ErrOutOfRange},
		"BeyondBlock":  {reason: "rounding must not exceed the largest", in: Range{Required: largest}, err: ErrOutOfRange},
		"BeyondDriver": {reason: "the driver cannot", in: Range{Required: largest + 1}, err: ErrOutOfRange},
		"Negative":     {reason: "sizes are not negative", in: Range{Required: -1}, err: ErrInvalid},
		"Least":        {reason: "more than required is allowed", in: Range{Required: 1}, least: 3 * BlockSize, want: 3 * BlockSize},
		"LeastUp":      {reason: "and never less than the least", in: Range{Required: 1}, least: 3*BlockSize - 1, want: 3 * BlockSize},
		"LeastDefault": {reason: "a limit that has room for the least", in: Range{Limit: 4 * BlockSize}, least: BlockSize, want: 4 * BlockSize},
		"LeastLimit":   {reason: "a limit below the least", in: Range{Limit: BlockSize}, least: 2 * BlockSize, err: ErrOutOfRange},
		"LeastLargest": {reason: "the driver's limit below the least", in: Range{Required: 1}, least: largest + 1, err: ErrOutOfRange},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := c.in.DiskSize(c.least, largest)
			if !errors.Is(err, c.err) || got != c.want {
				t.Errorf("%s: DiskSize = %d, %v, want %d, %v", c.reason, got, err, c.want, c.err)
			}
			if err == nil && (!c.in.Allow(got) || got%BlockSize != 0) {
				t.Errorf("%s: %d is not allowed, or no multiple of %d", c.reason, got, BlockSize)
			}
		})
	}
}

func TestCheckSame(t *testing.T) {
	writer := Capability{Access: AccessMount, Mode: SingleNodeWriter}
	reader := Capability{Access: AccessMount, Mode: MultiNodeReaderOnly}
	existing := &Volume{
		ID: "id", Name: "name", Capacity: 100, Node: "n1",
		Parameters: map[string]string{"kind": "fast"}, Capabilities: []Capability{writer, reader},
	}
	same := func() *CreateRequest {
		return &CreateRequest{
			Name: "name", Range: Range{Required: 100},
			Parameters: map[string]string{"kind": "fast"}, Capabilities: []Capability{writer, reader},
			Requirements: Requirements{Requisite: onNode("n1")},
		}
	}
	cases := map[string]struct {
		reason string
		change func(*CreateRequest)
		err    error
	}{
		"Same":           {reason: "a repeated call", change: func(*CreateRequest) {}},
		"Smaller":        {reason: "at least 50 is true of 100", change: func(r *CreateRequest) { r.Range.Required = 50 }},
		"NoRange":        {reason: "any size will do", change: func(r *CreateRequest) { r.Range = Range{} }},
		"NoRequirements": {reason: "any place will do", change: func(r *CreateRequest) { r.Requirements = Requirements{} }},
		"OtherOrder":     {reason: "capabilities are a set", change: func(r *CreateRequest) { r.Capabilities = []Capability{reader, writer} }},
		"Larger":         {reason: "the volume is too small", change: func(r *CreateRequest) { r.Range.Required = 101 }, err: ErrExists},
		"LimitBelow":     {reason: "the volume is too large", change: func(r *CreateRequest) { r.Range = Range{Limit: 99} }, err: ErrExists},
		"Parameters":     {reason: "upstream answers OK", change: func(r *CreateRequest) { r.Parameters = map[string]string{"kind": "slow"} }, err: ErrExists},
		"NoParameters":   {reason: "also when they are missing", change: func(r *CreateRequest) { r.Parameters = nil }, err: ErrExists},
		"Block":          {reason: "upstream answers OK with a mount volume", change: func(r *CreateRequest) { r.Capabilities = []Capability{{Access: AccessBlock, Mode: SingleNodeWriter}} }, err: ErrExists},
		"FewerModes":     {reason: "fewer capabilities are others", change: func(r *CreateRequest) { r.Capabilities = []Capability{writer} }, err: ErrExists},
		"OtherNode":      {reason: "out of reach", change: func(r *CreateRequest) { r.Requirements = Requirements{Requisite: onNode("n2")} }, err: ErrExists},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			req := same()
			c.change(req)
			if err := existing.CheckSame(req); !errors.Is(err, c.err) {
				t.Errorf("%s: error %v, want %v", c.reason, err, c.err)
			}
		})
	}
}
