from whymatch.cli import main

main()
