package logging_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/logging"
)

func TestFlags(t *testing.T) {
	with := func(change func(*logging.Options)) logging.Options {
		o := logging.NewOptions()
		change(&o)
		return o
	}
	cases := map[string]struct {
		reason string
		args   string
		want   logging.Options
	}{
		"Defaults":  {reason: "no flags", want: logging.NewOptions()},
		"Verbosity": {reason: "one dash", args: "-v=5", want: with(func(o *logging.Options) { o.Verbosity = 5 })},
		"TwoDashes": {reason: "two dashes", args: "--v=4 --vmodule=client=5,wait*=4", want: with(func(o *logging.Options) { o.Verbosity, o.VModule = 4, "client=5,wait*=4" })},
		"JSON":      {reason: "format", args: "-logging-format=json -log-json-split-stream -log-json-info-buffer-size=64Ki", want: with(func(o *logging.Options) { o.Format, o.JSONSplitStream, o.JSONInfoBufferSize = "json", true, "64Ki" })},
		"Text":      {reason: "format", args: "-logging-format text -log-text-split-stream=true -log-text-info-buffer-size 1M", want: with(func(o *logging.Options) { o.TextSplitStream, o.TextInfoBufferSize = true, "1M" })},
		"Flush":     {reason: "accepted without effect", args: "-log-flush-frequency=1s", want: with(func(o *logging.Options) { o.FlushFrequency = time.Second })},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := logging.NewOptions()
			fs := flag.NewFlagSet("test", flag.ContinueOnError)
			fs.SetOutput(io.Discard)
			o.AddFlags(fs)
			if err := fs.Parse(strings.Fields(c.args)); err != nil {
				t.Fatalf("%s: parse: %v", c.reason, err)
			}
			if err := o.Validate(); err != nil {
				t.Errorf("%s: Validate: %v", c.reason, err)
			}
			if diff := cmp.Diff(c.want, o); diff != "" {
				t.Errorf("%s: options (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

// The names are those that users of Kubernetes components know.
func TestFlagNames(t *testing.T) {
	o := logging.NewOptions()
	fs := flag.NewFlagSet("test", flag.ContinueOnError)
	o.AddFlags(fs)
	var got []string
	fs.VisitAll(func(f *flag.Flag) {
		got = append(got, f.Name+"="+f.DefValue)
		if f.Usage == "" {
			t.Errorf("flag %s has no usage", f.Name)
		}
	})
	want := []string{
		"log-flush-frequency=5s", "log-json-info-buffer-size=0", "log-json-split-stream=false",
		"log-text-info-buffer-size=0", "log-text-split-stream=false", "logging-format=text", "v=0", "vmodule=",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("flags (-want +got):\n%s", diff)
	}
}

func TestValidate(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(*logging.Options)
		err    string
	}{
		"Defaults":        {reason: "the defaults are valid", change: func(*logging.Options) {}},
		"Format":          {reason: "no such format", change: func(o *logging.Options) { o.Format = "xml" }, err: `logging format "xml"`},
		"Verbosity":       {reason: "negative", change: func(o *logging.Options) { o.Verbosity = -1 }, err: "log verbosity -1"},
		"Flush":           {reason: "negative", change: func(o *logging.Options) { o.FlushFrequency = -1 }, err: "log flush frequency -1ns"},
		"VModule":         {reason: "several patterns, an empty one between", change: func(o *logging.Options) { o.VModule = "a=1,,b*=2" }},
		"VModuleNoLevel":  {reason: "a level is required", change: func(o *logging.Options) { o.VModule = "a=1,b" }, err: `"b" must have the form pattern=N`},
		"VModuleNotANum":  {reason: "a level is a number", change: func(o *logging.Options) { o.VModule = "a=x" }, err: `"a=x" must have`},
		"VModuleNegative": {reason: "a level is not negative", change: func(o *logging.Options) { o.VModule = "a=-1" }, err: `"a=-1" must have`},
		"VModuleNoName":   {reason: "a pattern is required", change: func(o *logging.Options) { o.VModule = "=1" }, err: `"=1" must have`},
		"VModuleJSON":     {reason: "text only", change: func(o *logging.Options) { o.VModule, o.Format = "a=1", "json" }, err: "text format only"},
		"SizeEmpty":       {reason: "unset", change: func(o *logging.Options) { o.TextInfoBufferSize = "" }},
		"SizeWord":        {reason: "not a number", change: func(o *logging.Options) { o.TextInfoBufferSize = "big" }, err: `log-text-info-buffer-size "big"`},
		"SizeUnit":        {reason: "no such unit", change: func(o *logging.Options) { o.JSONInfoBufferSize = "1iK" }, err: "the unit must be one of"},
		"Everything": {
			reason: "all at once",
			change: func(o *logging.Options) { o.Format, o.Verbosity, o.FlushFrequency = "", -2, -3 },
			err:    "log verbosity -2",
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := logging.NewOptions()
			c.change(&o)
			err := o.Validate()
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %q", c.reason, err, c.err)
			}
			if _, newErr := logging.New(o, io.Discard); (newErr != nil) != (err != nil) {
				t.Errorf("%s: New: %v, Validate: %v", c.reason, newErr, err)
			}
		})
	}
}

// newLogger returns a logger that writes errors to w and, split, info to info.
func newLogger(t *testing.T, o logging.Options, w io.Writer) klog.Logger {
	t.Helper()
	logger, err := logging.New(o, w)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return logger
}

func TestText(t *testing.T) {
	o := logging.NewOptions()
	o.Verbosity = 2
	var out strings.Builder
	logger := newLogger(t, o, &out)
	logger.WithName("attacher").WithValues(logging.KeyVolumeID, "vol-1").Info("Attached", logging.KeyNode, "n1")
	logger.V(2).Info("State changed")
	logger.V(3).Info("Decided")
	logger.Error(errors.New("boom"), "Detach failed")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := []string{
		`^I\d{4} [0-9:.]+ +\d+ logging_test.go:\d+\] "Attached" logger="attacher" volumeID="vol-1" node="n1"$`,
		`^I.* logging_test.go:\d+\] "State changed"$`,
		`^E.* logging_test.go:\d+\] "Detach failed" err="boom"$`,
	}
	if len(lines) != len(want) {
		t.Fatalf("got %d lines, want %d:\n%s", len(lines), len(want), out.String())
	}
	for i, pattern := range want {
		if !regexp.MustCompile(pattern).MatchString(lines[i]) {
			t.Errorf("line %d is %s, want %s", i, lines[i], pattern)
		}
	}
}

func TestVModule(t *testing.T) {
	for name, split := range map[string]bool{"OneStream": false, "Split": true} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			o := logging.NewOptions()
			o.VModule, o.TextSplitStream, o.InfoOutput = "logging_t*=4,other=9", split, &out
			logger := newLogger(t, o, &out)
			logger.V(4).Info("Shown")
			logger.V(5).Info("Hidden")
			if got := out.String(); !strings.Contains(got, "Shown") || strings.Contains(got, "Hidden") {
				t.Errorf("log is %s", got)
			}
		})
	}
}

// lines decodes JSON lines.
func lines(t *testing.T, text string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for line := range strings.Lines(text) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		out = append(out, m)
	}
	return out
}

func TestJSON(t *testing.T) {
	o := logging.NewOptions()
	o.Format, o.Verbosity = logging.FormatJSON, 2
	var out strings.Builder
	logger := newLogger(t, o, &out)
	before := float64(time.Now().UnixMilli())
	logger.WithValues(logging.KeyVolumeID, "vol-1").V(2).Info("Attached", logging.KeyDuration, time.Second)
	logger.V(3).Info("Decided")
	logger.Error(errors.New("boom"), "Detach failed", "level", "x")
	got := lines(t, out.String())
	if len(got) != 2 {
		t.Fatalf("got %d lines, want 2:\n%s", len(got), out.String())
	}
	for _, line := range got {
		if ts, ok := line["ts"].(float64); !ok || ts < before || ts > before+float64(time.Hour.Milliseconds()) {
			t.Errorf("ts is %v, want milliseconds since 1970", line["ts"])
		}
		if caller, ok := line["caller"].(string); !ok || !strings.HasPrefix(caller, "logging_test.go:") {
			t.Errorf("caller is %v, want this file", line["caller"])
		}
		delete(line, "ts")
		delete(line, "caller")
	}
	want := []map[string]any{
		{"msg": "Attached", "v": 2.0, "volumeID": "vol-1", "duration": 1e9},
		{"msg": "Detach failed", "err": "boom", "level": "x"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestSplitStream(t *testing.T) {
	cases := map[string]struct {
		reason     string
		format     string
		text, json bool
		split      bool
	}{
		"Text":            {reason: "text, split", format: "text", text: true, split: true},
		"JSON":            {reason: "JSON, split", format: "json", json: true, split: true},
		"TextOneStream":   {reason: "the other format's flag has no effect", format: "text", json: true},
		"JSONOneStream":   {reason: "the other format's flag has no effect", format: "json", text: true},
		"TextByDefault":   {reason: "not split by default", format: "text"},
		"BothFlagsOfText": {reason: "each format has its flag", format: "text", text: true, json: true, split: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var info, errs strings.Builder
			o := logging.NewOptions()
			o.Format, o.TextSplitStream, o.JSONSplitStream, o.InfoOutput = c.format, c.text, c.json, &info
			logger := newLogger(t, o, &errs).WithName("x").WithValues("k", "value")
			logger.Info("Good")
			logger.WithCallDepth(0).Error(nil, "Bad")
			if got := strings.Contains(info.String(), "Good"); got != c.split {
				t.Errorf("%s: info stream: %s", c.reason, info.String())
			}
			if strings.Contains(info.String(), "Bad") || !strings.Contains(errs.String(), "Bad") {
				t.Errorf("%s: an error went to info: %s", c.reason, info.String())
			}
			for line := range strings.Lines(info.String() + errs.String()) {
				if !strings.Contains(line, "logging_test.go:") || !strings.Contains(line, "value") {
					t.Errorf("%s: line %s lacks the caller or the value", c.reason, line)
				}
			}
		})
	}
}

// Lines of several goroutines do not mix.
func TestConcurrentLines(t *testing.T) {
	for _, format := range []string{logging.FormatText, logging.FormatJSON} {
		t.Run(format, func(t *testing.T) {
			o := logging.NewOptions()
			o.Format = format
			var out bytes.Buffer // written under the logger's lock only
			logger := newLogger(t, o, &out)
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					for range 50 {
						logger.Info("Line", "worker", strconv.Itoa(i))
					}
				})
			}
			wg.Wait()
			if n := strings.Count(out.String(), "\n"); n != 400 {
				t.Errorf("%d lines, want 400", n)
			}
			for line := range strings.Lines(out.String()) {
				if strings.Count(line, "worker") != 1 {
					t.Errorf("mixed line %q", line)
				}
			}
		})
	}
}

// Keys are unique lowerCamelCase, as the name of the constant says.
func TestKeys(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "keys.go", nil, 0)
	if err != nil {
		t.Fatalf("parse: %v", err)
	}
	seen := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		name := spec.Names[0].Name
		key, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if other, taken := seen[key]; taken {
			t.Errorf("%s and %s are the same key %q", name, other, key)
		}
		seen[key] = name
		if !strings.EqualFold("Key"+key, name) || !unicode.IsLower(rune(key[0])) {
			t.Errorf("%s is %q, want its name in lowerCamelCase", name, key)
		}
		return true
	})
	if len(seen) < 20 {
		t.Errorf("only %d keys were found", len(seen))
	}
}

func ExampleNew() {
	logger, err := logging.New(logging.NewOptions(), io.Discard)
	if err != nil {
		fmt.Println(err)
		return
	}
	logger.Info("Attached", logging.KeyVolumeID, "vol-1")
	fmt.Println(logger.Enabled(), logger.V(1).Enabled())
	// Output: true false
}
