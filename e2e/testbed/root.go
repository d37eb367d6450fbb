package testbed

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Path returns the absolute path of a file or directory of this tree, given by its path below the root. A name may be a pattern of filepath.Glob.
// Path panics outside of the tree: tests begin in the directory of their package, and builds with -trimpath do not know where the tree was.
func Path(below ...string) string {
	return filepath.Join(append([]string{root()}, below...)...)
}

// root is the directory above the working directory that has go.work.
var root = sync.OnceValue(func() string {
	began, err := os.Getwd()
	if err != nil {
		panic(fmt.Sprintf("find the root of the tree: %v", err))
	}
	for dir := began; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			panic(fmt.Sprintf("find the root of the tree: neither %s nor a directory above it has go.work", began))
		}
	}
})
