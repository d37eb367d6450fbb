package logging

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// New returns a logger that writes to w. It does not become klog's global
// logger; main does that by klog.SetLogger, for the lines of libraries that
// know no other.
func New(o Options, w io.Writer) (klog.Logger, error) {
	if err := o.Validate(); err != nil {
		return klog.Logger{}, err
	}
	if o.Format == FormatJSON {
		return newJSON(o, w), nil
	}
	return newText(o, w)
}

// infoOutput returns where info messages go.
func (o *Options) infoOutput(split bool, w io.Writer) io.Writer {
	switch {
	case !split:
		return w
	case o.InfoOutput != nil:
		return o.InfoOutput
	default:
		return os.Stdout
	}
}

func newText(o Options, w io.Writer) (klog.Logger, error) {
	out := &syncWriter{w: w}
	errorSink, err := textSink(o, out)
	if err != nil || !o.TextSplitStream {
		return logr.New(errorSink), err
	}
	infoSink, err := textSink(o, &syncWriter{w: o.infoOutput(true, w)})
	// splitSink.Error stands between the caller and the sink for errors.
	return logr.New(&splitSink{LogSink: infoSink, errors: deeper(errorSink, 1)}), err
}

func textSink(o Options, w io.Writer) (logr.LogSink, error) {
	cfg := textlogger.NewConfig(textlogger.Output(w), textlogger.Verbosity(o.Verbosity))
	if err := cfg.VModule().Set(o.VModule); err != nil {
		return nil, fmt.Errorf("vmodule %q: %w", o.VModule, err)
	}
	return textlogger.NewLogger(cfg).GetSink(), nil
}

func newJSON(o Options, w io.Writer) klog.Logger {
	opts := &slog.HandlerOptions{
		AddSource: true,
		// logr's V(n) is slog's level -n.
		Level:       slog.Level(-o.Verbosity),
		ReplaceAttr: replaceAttr,
	}
	errors := slog.NewJSONHandler(w, opts)
	if !o.JSONSplitStream {
		return logr.FromSlogHandler(errors)
	}
	return logr.FromSlogHandler(splitHandler{info: slog.NewJSONHandler(o.infoOutput(true, w), opts), errors: errors})
}

// replaceAttr turns slog's own attributes into those of Kubernetes' JSON
// format: ts in milliseconds since 1970, caller as file:line, and v for info
// messages only.
func replaceAttr(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		if a.Value.Kind() == slog.KindTime {
			return slog.Float64("ts", float64(a.Value.Time().UnixMicro())/1000)
		}
	case slog.LevelKey:
		if level, ok := a.Value.Any().(slog.Level); ok {
			if level >= slog.LevelError {
				return slog.Attr{}
			}
			return slog.Int("v", max(0, int(-level))) // slog has a level for warnings
		}
	case slog.SourceKey:
		if src, ok := a.Value.Any().(*slog.Source); ok && src != nil {
			return slog.String("caller", filepath.Base(src.File)+":"+strconv.Itoa(src.Line))
		}
	}
	return a
}

// syncWriter keeps lines of concurrent loggers apart.
type syncWriter struct {
	mu sync.Mutex
	w  io.Writer
}

// Write writes p undivided.
func (s *syncWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// splitSink sends info messages to the embedded sink and errors to another.
type splitSink struct {
	logr.LogSink
	errors logr.LogSink
}

var (
	_ logr.LogSink          = (*splitSink)(nil)
	_ logr.CallDepthLogSink = (*splitSink)(nil)
)

// Error logs to the sink for errors.
func (s *splitSink) Error(err error, msg string, kv ...any) { s.errors.Error(err, msg, kv...) }

// WithValues adds the values to both sinks.
func (s *splitSink) WithValues(kv ...any) logr.LogSink {
	return &splitSink{LogSink: s.LogSink.WithValues(kv...), errors: s.errors.WithValues(kv...)}
}

// WithName adds the name to both sinks.
func (s *splitSink) WithName(name string) logr.LogSink {
	return &splitSink{LogSink: s.LogSink.WithName(name), errors: s.errors.WithName(name)}
}

// WithCallDepth makes both sinks report a caller further up.
func (s *splitSink) WithCallDepth(depth int) logr.LogSink {
	return &splitSink{LogSink: deeper(s.LogSink, depth), errors: deeper(s.errors, depth)}
}

func deeper(sink logr.LogSink, depth int) logr.LogSink {
	if d, ok := sink.(logr.CallDepthLogSink); ok {
		return d.WithCallDepth(depth)
	}
	return sink
}

// splitHandler sends records at slog.LevelError and above to one handler and
// the others to another.
type splitHandler struct{ info, errors slog.Handler }

var _ slog.Handler = splitHandler{}

func (h splitHandler) pick(level slog.Level) slog.Handler {
	if level >= slog.LevelError {
		return h.errors
	}
	return h.info
}

// Enabled reports whether the level is logged.
func (h splitHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.pick(level).Enabled(ctx, level)
}

// Handle writes the record.
func (h splitHandler) Handle(ctx context.Context, r slog.Record) error {
	return h.pick(r.Level).Handle(ctx, r)
}

// WithAttrs adds the attributes to both handlers.
func (h splitHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return splitHandler{info: h.info.WithAttrs(attrs), errors: h.errors.WithAttrs(attrs)}
}

// WithGroup opens the group in both handlers.
func (h splitHandler) WithGroup(name string) slog.Handler {
	return splitHandler{info: h.info.WithGroup(name), errors: h.errors.WithGroup(name)}
}
