package reconciletest

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/grpc/codes"
)

// command reads the arguments of one command. Arguments that its verb does not read are errors.
type command struct {
	t    testing.TB
	data *datadriven.TestData
	used map[string]bool
}

func (c *command) fatalf(format string, args ...any) {
	c.t.Helper()
	c.data.Fatalf(c.t, format, args...)
}

// finish fails the test if an argument was not read.
func (c *command) finish() {
	c.t.Helper()
	for _, arg := range c.data.CmdArgs {
		if !c.used[arg.Key] {
			c.fatalf("%s does not know the argument %q", c.data.Cmd, arg.Key)
		}
	}
}

// words returns the arguments without a value.
func (c *command) words() []string {
	var words []string
	for _, arg := range c.data.CmdArgs {
		if len(arg.Vals) == 0 {
			words = append(words, arg.Key)
			c.used[arg.Key] = true
		}
	}
	return words
}

// word returns the only argument without a value.
func (c *command) word(what string) string {
	c.t.Helper()
	words := c.words()
	if len(words) != 1 {
		c.fatalf("%s needs one argument: %s", c.data.Cmd, what)
	}
	return words[0]
}

// has reports whether the command has that argument, without a value.
func (c *command) has(key string) bool {
	c.used[key] = true
	return c.data.HasArg(key)
}

// list returns the values of an argument, nil without the argument.
func (c *command) list(key string) []string {
	c.used[key] = true
	arg, ok := c.data.Arg(key)
	if !ok {
		return nil
	}
	list := []string{}
	for _, value := range arg.Vals {
		if value != "" {
			list = append(list, value)
		}
	}
	return list
}

// text returns the value of an argument, with spaces for its underscores, or "".
func (c *command) text(key string) string {
	return strings.Join(c.list(key), ",")
}

// pairs returns all arguments as a map.
func (c *command) pairs() map[string]string {
	pairs := map[string]string{}
	for _, arg := range c.data.CmdArgs {
		c.used[arg.Key] = true
		pairs[arg.Key] = strings.Join(arg.Vals, ",")
	}
	return pairs
}

// segment returns an argument of the form key=(a=b,c=d).
func (c *command) segment(key string) map[string]string {
	c.t.Helper()
	list := c.list(key)
	if list == nil {
		return nil
	}
	segment := map[string]string{}
	for _, pair := range list {
		k, v, ok := strings.Cut(pair, "=")
		if !ok {
			c.fatalf("%s=%q must be key=value pairs", key, pair)
		}
		segment[strings.TrimSpace(k)] = strings.TrimSpace(v)
	}
	return segment
}

func (c *command) duration(text string) time.Duration {
	c.t.Helper()
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		c.fatalf("%q must be a duration such as 10s", text)
	}
	return d
}

func (c *command) number(text string) int {
	c.t.Helper()
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		c.fatalf("%q must be a whole number", text)
	}
	return n
}

// code returns the gRPC code of a name such as DeadlineExceeded or DEADLINE_EXCEEDED.
func (c *command) code(text string) codes.Code {
	c.t.Helper()
	wanted := strings.ReplaceAll(text, "_", "")
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		if strings.EqualFold(code.String(), wanted) {
			return code
		}
	}
	c.fatalf("%q must be the name of a gRPC code", text)
	return codes.Unknown
}

// splitName returns the parts of namespace/name or name.
func splitName(text string) (namespace, name string) {
	if before, after, ok := strings.Cut(text, "/"); ok {
		return before, after
	}
	return "", text
}
