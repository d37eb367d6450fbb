package logging_test

import (
	"errors"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikit/logging"
)

// Both streams of a split log look the same but for what they are for.
func TestSplitStreamsAgree(t *testing.T) {
	for name, format := range map[string]string{"Text": logging.FormatText, "JSON": logging.FormatJSON} {
		t.Run(name, func(t *testing.T) {
			write := func(split bool) (info, all string) {
				var infoOut, out strings.Builder
				o := logging.NewOptions()
				o.Format, o.Verbosity, o.InfoOutput = format, 3, &infoOut
				o.TextSplitStream, o.JSONSplitStream = split, split
				logger := newLogger(t, o, &out)
				narrate(logger)
				return infoOut.String(), out.String()
			}
			info, errs := write(true)
			_, all := write(false)
			if n := strings.Count(info, "\n"); n != 4 {
				t.Errorf("%d info lines, want 4:\n%s", n, info)
			}
			if n := strings.Count(errs, "\n"); n != 2 {
				t.Errorf("%d error lines, want 2:\n%s", n, errs)
			}
			split := append(messages(info), messages(errs)...)
			if diff := cmp.Diff(sorted(messages(all)), sorted(split)); diff != "" {
				t.Errorf("one stream and two say the same (-one +two):\n%s", diff)
			}
		})
	}
}

// narrate logs in all ways, from one place so that lines can be compared.
func narrate(logger logr.Logger) {
	logger.Info("Plain")
	logger.V(3).Info("Detail", "n", 1)
	logger.V(4).Info("Too much")
	named := logger.WithName("a").WithName("b").WithValues("volume", "v-1")
	named.Info("Named", "phase", "Bound")
	named.Error(errors.New("boom"), "Bad", "node", "n-1")
	named.Error(nil, "Bad without an error")
	helper(logger)
}

// helper is left out of the trace: the caller is who called it.
func helper(logger logr.Logger) {
	logger.WithCallDepth(1).Info("From a helper")
}

// messages are the lines without their times and threads.
func messages(text string) []string {
	changing := regexp.MustCompile(`^[IE]\d{4} [0-9:.]+ +\d+ |"ts":[0-9.e+]+`)
	var list []string
	for line := range strings.Lines(text) {
		list = append(list, changing.ReplaceAllString(line, ""))
	}
	return list
}

func sorted(list []string) map[string]int {
	count := map[string]int{}
	for _, line := range list {
		count[line]++
	}
	return count
}

// A logger of a library that speaks slog goes through the same handlers.
func TestSlog(t *testing.T) {
	for name, split := range map[string]bool{"OneStream": false, "Split": true} {
		t.Run(name, func(t *testing.T) {
			var info, errs strings.Builder
			o := logging.NewOptions()
			o.Format, o.Verbosity, o.JSONSplitStream, o.InfoOutput = logging.FormatJSON, 2, split, &info
			library := slog.New(logr.ToSlogHandler(newLogger(t, o, &errs)))
			library.With("a", 1).WithGroup("g").Info("Grouped", "b", 2, "time", "noon", "level", "high")
			library.Warn("Warning")
			library.Error("Error", "err", "boom")
			library.Debug("Hidden", "level", 4)
			got := lines(t, info.String()+errs.String())
			for _, line := range got {
				delete(line, "ts")
				delete(line, "caller")
			}
			want := []map[string]any{
				{"msg": "Grouped", "v": 0.0, "a": 1.0, "g": map[string]any{"b": 2.0, "time": "noon", "level": "high"}},
				{"msg": "Warning", "v": 0.0},
				{"msg": "Error", "err": "boom"},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
			if split != strings.Contains(info.String(), "Grouped") || strings.Contains(info.String(), `"Error"`) {
				t.Errorf("info stream: %s", info.String())
			}
		})
	}
}

func TestSizes(t *testing.T) {
	cases := map[string]struct {
		reason string
		valid  []string
		wrong  []string
	}{
		"Numbers":  {reason: "digits only", valid: []string{"0", "1", "9223372036854775807"}, wrong: []string{"-1", "+1", "1.5", "1e3", "0x10", " 1", "9223372036854775808"}},
		"Decimal":  {reason: "powers of a thousand", valid: []string{"1k", "2M", "3G", "4T"}, wrong: []string{"1m", "1g", "1KB", "1B", "1P"}},
		"Binary":   {reason: "powers of 1024", valid: []string{"1Ki", "2Mi", "3Gi", "4Ti"}, wrong: []string{"1ki", "1KI", "1iK", "1KiKi", "1i", "Ki"}},
		"Nonsense": {reason: "nothing else", wrong: []string{"k", "one", "1 Ki", "1,000"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			check := func(size string, valid bool) {
				for flagName, o := range map[string]logging.Options{
					"log-text-info-buffer-size": {Format: "text", TextInfoBufferSize: size},
					"log-json-info-buffer-size": {Format: "json", JSONInfoBufferSize: size},
				} {
					err := o.Validate()
					if (err == nil) != valid || err != nil && !strings.Contains(err.Error(), flagName) {
						t.Errorf("%s: --%s=%q: %v", tc.reason, flagName, size, err)
					}
				}
			}
			for _, size := range tc.valid {
				check(size, true)
			}
			for _, size := range tc.wrong {
				check(size, false)
			}
		})
	}
}

// Values that the formats cannot print do not lose the line.
func TestAwkwardValues(t *testing.T) {
	for name, format := range map[string]string{"Text": logging.FormatText, "JSON": logging.FormatJSON} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			o := logging.NewOptions()
			o.Format = format
			logger := newLogger(t, o, &out)
			logger.Info("Awkward", "channel", make(chan int), "func", func() {}, "newline", "a\nb", "bytes", []byte{0xff, 0},
				"nil", nil, "error", errors.New("x"), "duration", time.Second, 7, "a key that is a number")
			if got := out.String(); !strings.Contains(got, "Awkward") || !strings.Contains(got, "newline") {
				t.Errorf("got %q", got)
			}
			if format == logging.FormatJSON {
				if got := lines(t, out.String()); len(got) != 1 {
					t.Errorf("%d lines, want 1", len(got))
				}
			}
		})
	}
}

// A disabled line costs no allocation: components log what they decide at V(4), thousands of times a second.
func TestHiddenLinesAreFree(t *testing.T) {
	for name, format := range map[string]string{"Text": logging.FormatText, "JSON": logging.FormatJSON} {
		t.Run(name, func(t *testing.T) {
			o := logging.NewOptions()
			o.Format = format
			logger := newLogger(t, o, io.Discard).V(4)
			if n := testing.AllocsPerRun(100, func() {
				if logger.Enabled() {
					logger.Info("Decided", "volume", "v")
				}
			}); n != 0 {
				t.Errorf("%v allocations, want none", n)
			}
		})
	}
}
