// Command sbom writes the software bill of materials of a Go binary as CycloneDX JSON: the toolchain and every module that the
// linker has put into it, as the binary itself records them. The same binary gives the same text.
package main

import (
	"debug/buildinfo"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	version := flag.String("version", "", "version of the binary, such as v0.1.0")
	flag.Parse()
	if err := run(os.Stdout, *version, flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "sbom: %v\n", err)
		os.Exit(1)
	}
}

func run(out io.Writer, version string, args []string) error {
	if len(args) != 1 || version == "" {
		return fmt.Errorf("usage: sbom -version VERSION BINARY")
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("read what went into %s: %w", args[0], err)
	}
	encoder := cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true)
	if err := encoder.Encode(bom(filepath.Base(args[0]), version, info)); err != nil {
		return fmt.Errorf("write the bill of materials: %w", err)
	}
	return nil
}

// bom lists the main module as what the bill is about, and the rest as its components.
func bom(binary, version string, info *debug.BuildInfo) *cdx.BOM {
	main := component(info.Main.Path, version)
	main.Type, main.Name = cdx.ComponentTypeApplication, binary
	libraries := []cdx.Component{component("stdlib", info.GoVersion)}
	for _, module := range info.Deps {
		// Modules of this repository are replaced by their directories: they have the version of the whole.
		if module.Replace != nil && module.Replace.Version == "" {
			libraries = append(libraries, component(module.Path, version))
			continue
		}
		if module.Replace != nil {
			module = module.Replace
		}
		libraries = append(libraries, component(module.Path, module.Version))
	}
	result := cdx.NewBOM()
	result.Metadata = &cdx.Metadata{Component: &main}
	result.Components = &libraries
	return result
}

func component(path, version string) cdx.Component {
	url := "pkg:golang/" + path + "@" + version
	return cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url}
}
