// Package logging makes the logger of a component from the flags that
// Kubernetes components share, as text in klog's format or as JSON. The logger
// is handed on in contexts; no global state is touched.
//
// It is for main packages and tests. Everything else takes its logger from the
// context by klog.FromContext and uses the keys of this package.
package logging

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

const (
	// FormatText is klog's format: one line with a header, then key="value" pairs.
	FormatText = "text"
	// FormatJSON is one JSON object per line with ts, caller, msg and v or err.
	FormatJSON = "json"

	defaultFlushFrequency = 5 * time.Second
)

// Options says what is logged and how.
type Options struct {
	// Format is text or json. Default text.
	Format string
	// Verbosity is the highest level that is logged. Default 0.
	Verbosity int
	// VModule raises the verbosity for single files, as in "client=5,wait*=4".
	// It works for text only.
	VModule string
	// FlushFrequency is accepted and has no effect: nothing is buffered, so
	// that a crash loses no line. Default 5 s.
	FlushFrequency time.Duration
	// TextSplitStream and JSONSplitStream send info messages to InfoOutput, so
	// that only errors go to the writer of New.
	TextSplitStream, JSONSplitStream bool
	// TextInfoBufferSize and JSONInfoBufferSize are accepted as quantities of
	// bytes and have no effect, as FlushFrequency.
	TextInfoBufferSize, JSONInfoBufferSize string
	// InfoOutput receives info messages of a split stream. It has no flag.
	// Default: the process's standard output.
	InfoOutput io.Writer
}

// NewOptions returns the defaults.
func NewOptions() Options {
	return Options{
		Format:             FormatText,
		FlushFrequency:     defaultFlushFrequency,
		TextInfoBufferSize: "0",
		JSONInfoBufferSize: "0",
	}
}

// AddFlags registers the flags on fs, with the present values as defaults.
func (o *Options) AddFlags(fs *flag.FlagSet) {
	fs.IntVar(&o.Verbosity, "v", o.Verbosity, "log level verbosity: 0 for what an operator must know, 2 for changes of state, 4 for decisions, 5 for gRPC requests and replies")
	fs.StringVar(&o.VModule, "vmodule", o.VModule, "comma-separated `pattern=N` settings that raise the verbosity of single files (text format only)")
	fs.StringVar(&o.Format, "logging-format", o.Format, "log format: `text` or json")
	fs.DurationVar(&o.FlushFrequency, "log-flush-frequency", o.FlushFrequency, "accepted for compatibility; log lines are written at once")
	fs.BoolVar(&o.TextSplitStream, "log-text-split-stream", o.TextSplitStream, "in text format, write errors to stderr and info messages to stdout")
	fs.StringVar(&o.TextInfoBufferSize, "log-text-info-buffer-size", o.TextInfoBufferSize, "accepted for compatibility; log lines are written at once")
	fs.BoolVar(&o.JSONSplitStream, "log-json-split-stream", o.JSONSplitStream, "in JSON format, write errors to stderr and info messages to stdout")
	fs.StringVar(&o.JSONInfoBufferSize, "log-json-info-buffer-size", o.JSONInfoBufferSize, "accepted for compatibility; log lines are written at once")
}

// Validate reports everything that is wrong with the options.
func (o *Options) Validate() error {
	var errs []error
	if o.Format != FormatText && o.Format != FormatJSON {
		errs = append(errs, fmt.Errorf("logging format %q: must be %q or %q", o.Format, FormatText, FormatJSON))
	}
	if o.Verbosity < 0 {
		errs = append(errs, fmt.Errorf("log verbosity %d: must not be negative", o.Verbosity))
	}
	if o.FlushFrequency < 0 {
		errs = append(errs, fmt.Errorf("log flush frequency %v: must not be negative", o.FlushFrequency))
	}
	errs = append(errs, o.validateVModule(),
		validateSize("log-text-info-buffer-size", o.TextInfoBufferSize),
		validateSize("log-json-info-buffer-size", o.JSONInfoBufferSize))
	return errors.Join(errs...)
}

func (o *Options) validateVModule() error {
	if o.VModule == "" {
		return nil
	}
	if o.Format == FormatJSON {
		return fmt.Errorf("vmodule %q: works with the text format only", o.VModule)
	}
	for item := range strings.SplitSeq(o.VModule, ",") {
		if item == "" {
			continue
		}
		pattern, level, ok := strings.Cut(item, "=")
		if n, err := strconv.Atoi(level); !ok || pattern == "" || err != nil || n < 0 {
			return fmt.Errorf("vmodule %q: %q must have the form pattern=N with N >= 0", o.VModule, item)
		}
	}
	return nil
}

// validateSize checks a quantity of bytes as Kubernetes writes them: digits
// with an optional suffix k, M, G, T, Ki, Mi, Gi or Ti.
func validateSize(name, size string) error {
	digits := strings.TrimRight(size, "kKMGTi")
	if _, err := strconv.ParseUint(digits, 10, 63); size != "" && err != nil {
		return fmt.Errorf("%s %q: must be a number of bytes such as 512Ki", name, size)
	}
	switch strings.TrimPrefix(size, digits) {
	case "", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti":
		return nil
	default:
		return fmt.Errorf("%s %q: the unit must be one of k, M, G, T, Ki, Mi, Gi, Ti", name, size)
	}
}
