#compdef gpulua
# Completion of gpulua's command line, for zsh.
local -a options=(
@OPTIONS@
)
_arguments -S -A '-*' $options '1:script:_files' '*::arguments of the script:_files'
